#!/bin/bash
grep -c q /home/agent/words.txt >/home/agent/answer.txt
