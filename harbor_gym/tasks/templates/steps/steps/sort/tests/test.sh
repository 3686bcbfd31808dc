#!/bin/bash -p
PATH=/usr/bin:/bin
unset BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH IFS
umask 022
readonly RESULT=/srv/agent/sorted.txt

reward=0
if [ -f "$RESULT" ] && [ ! -L "$RESULT" ] && cmp -s "$RESULT" /tests/expected.txt; then
    reward=1
else
    echo "$RESULT is not the sorted list"
fi
# The verdict's folder is the verifier's alone.
mkdir -p /logs/verifier
chown root:root /logs/verifier
chmod 755 /logs/verifier
rm -rf /logs/verifier/reward.txt /logs/verifier/reward.json
echo "$reward" >/logs/verifier/reward.txt
