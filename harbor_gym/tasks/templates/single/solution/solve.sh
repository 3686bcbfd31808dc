#!/bin/bash
grep -c q /srv/agent/words.txt >/srv/agent/answer.txt
