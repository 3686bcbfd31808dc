#!/bin/bash
code=$(archive code | cut -d ' ' -f 2)
until archive next | grep -q 'no more pages'; do :; done
archive open "$code"
