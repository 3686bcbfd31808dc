#!/bin/bash -p
# Ask the service three lines that nobody could have known.
PATH=/usr/bin:/bin
unset BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH IFS
umask 022
readonly PORT=7070 QUESTIONS=3

ask() { # line
    local answer
    { exec 3<>"/dev/tcp/127.0.0.1/$PORT"; } 2>/dev/null || return 1
    printf '%s\n' "$1" >&3
    IFS= read -r -t 5 -n 200 answer <&3
    exec 3>&-
    printf '%s' "$answer"
}

right=0
for _ in $(seq "$QUESTIONS"); do
    question=$(tr -d - </proc/sys/kernel/random/uuid)
    expected=$(rev <<<"$question")
    answer=$(ask "$question") || answer="no connection"
    if [ "$answer" = "$expected" ]; then
        right=$((right + 1))
    else
        echo "$question was answered with '$answer', expected '$expected'"
    fi
done
if [ "$right" -eq "$QUESTIONS" ]; then reward=1; else reward=0; fi
# The verdict's folder is the verifier's alone.
mkdir -p /logs/verifier
chown root:root /logs/verifier
chmod 755 /logs/verifier
rm -rf /logs/verifier/reward.txt /logs/verifier/reward.json
echo "$reward" >/logs/verifier/reward.txt
