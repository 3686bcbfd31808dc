# shellcheck shell=sh
# Answer with the clock tick at which this process began, and the memory limit's victims so far ("-" where not told).
# POSIX sh: the image may have nothing else.
exec 2>/dev/null
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

stat=
while IFS= read -r line || [ -n "$line" ]; do stat="$stat$line "; done <"/proc/$$/stat"
# shellcheck disable=SC2086  # the fields after the name, which may hold anything
set -- ${stat##*) }
tick=${20}

kills=-
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r "$file" ] || continue
    while read -r name value; do [ "$name" = oom_kill ] && kills=$value; done <"$file"
    break
done
echo "census $tick $kills"
