#!/bin/bash
grep -c q /home/agent/sorted.txt >/home/agent/answer.txt
