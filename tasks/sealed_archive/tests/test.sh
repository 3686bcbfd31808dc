#!/bin/bash -p
# The policy is an unprivileged user. End what it left running, take the verdict's directory away from it, then grade.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
unset BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH IFS
cd / || exit 1
umask 022
pkill -KILL -u agent
mkdir -p /logs/verifier
chown root:root /logs/verifier
chmod 755 /logs/verifier
find /logs/verifier -mindepth 1 ! -path /logs/verifier/test-stdout.txt -delete
exec /usr/bin/python3 -I /tests/grade.py
