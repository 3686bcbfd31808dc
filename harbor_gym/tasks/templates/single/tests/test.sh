#!/bin/bash -p
# Grade the end state. Nothing that the policy may have put on PATH or into shell files is used.
PATH=/usr/bin:/bin
unset BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH IFS
umask 022
readonly ANSWER=/srv/agent/answer.txt EXPECTED=4

reward=0
if [ -f "$ANSWER" ] && [ ! -L "$ANSWER" ] && [ "$(head -c 100 "$ANSWER")" = "$EXPECTED" ]; then
    reward=1
else
    echo "$ANSWER should hold $EXPECTED"
fi
# The verdict's folder is the verifier's alone.
mkdir -p /logs/verifier
chown root:root /logs/verifier
chmod 755 /logs/verifier
rm -rf /logs/verifier/reward.txt /logs/verifier/reward.json
echo "$reward" >/logs/verifier/reward.txt
