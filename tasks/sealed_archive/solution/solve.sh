#!/bin/bash
code=$(archive code | cut -d ' ' -f 2)
while archive next | grep -q '^page '; do :; done
archive open "$code"
