#!/bin/bash
grep -c q /srv/agent/sorted.txt >/srv/agent/answer.txt
