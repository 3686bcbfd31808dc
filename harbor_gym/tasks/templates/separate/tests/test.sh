#!/bin/bash -p
# Grade what came over, in a sandbox that the policy was never in.
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
mkdir -p /logs/verifier
echo "$reward" >/logs/verifier/reward.txt
