# shellcheck shell=sh disable=SC2154  # common.sh stands before
# Print the number of the memory limit's kills so far ("-" where not reported), then each process as PID:START, START in
# clock ticks since boot, then each System V object as KIND:NUMBER; on a second line the directory in which this script
# started, as UID:GID MODE PATH.
# POSIX sh and builtins: the image may have nothing else.

answer="baseline $kills"
for path in /proc/[0-9]*; do
    pid=${path#/proc/}
    look "$pid" && answer="$answer $pid:$start"
done
list_objects
echo "$answer$objects"
echo "$(stat -c '%u:%g %a' . || echo 0:0 755) $PWD"
