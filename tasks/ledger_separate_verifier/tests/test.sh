#!/bin/bash -p
PATH=/usr/bin:/bin
cd / || exit 1
mkdir -p /logs/verifier
exec /usr/bin/python3 -I /tests/grade.py
