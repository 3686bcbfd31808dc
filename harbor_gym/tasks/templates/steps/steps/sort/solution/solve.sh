#!/bin/bash
LC_ALL=C sort /home/agent/words.txt >/home/agent/sorted.txt
