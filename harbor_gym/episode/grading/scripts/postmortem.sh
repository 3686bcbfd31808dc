# shellcheck shell=sh disable=SC2154  # common.sh stands before
# After a verifier without a verdict: print the number of the memory limit's kills so far, then the end of the tests' output.
echo "postmortem $kills"
[ -f "$1" ] && tail -c 4000 "$1"
