# shellcheck shell=sh disable=SC2154  # common.sh stands before
# Answer with the clock tick at which this process began, and the memory limit's victims so far ("-" where not told).
# POSIX sh: the image may have nothing else.

stat=
while IFS= read -r line || [ -n "$line" ]; do stat="$stat$line "; done <"/proc/$$/stat"
# shellcheck disable=SC2086  # the fields after the name, which may hold anything
set -- ${stat##*) }
tick=${20}

echo "census $tick $kills"
