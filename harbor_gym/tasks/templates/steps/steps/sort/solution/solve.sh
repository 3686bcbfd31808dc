#!/bin/bash
LC_ALL=C sort /srv/agent/words.txt >/srv/agent/sorted.txt
