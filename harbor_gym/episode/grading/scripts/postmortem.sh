# shellcheck shell=sh disable=SC2154  # common.sh stands before
# After a verifier without a verdict: the memory limit's victims so far, then the end of what the tests printed.
echo "postmortem $kills"
[ -f "$1" ] && tail -c 4000 "$1"
