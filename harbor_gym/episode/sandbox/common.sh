# shellcheck shell=sh disable=SC2034  # kills is read by the script that follows
# Stands before the others: nothing but the answer is said, no program of the policy's is found, and $kills is the
# memory limit's victims so far, "-" where the sandbox doesn't tell. Each of the others is called by a "set -- ...".
exec 2>/dev/null
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
kills=-
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r "$file" ] || continue
    while read -r name value; do [ "$name" = oom_kill ] && kills=$value; done <"$file"
    break
done

# Set left to something that lies in directory $1; fail where nothing does.
find_left() {
    for left in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ -e "$left" ] || [ -L "$left" ]; then return 0; fi
    done
    return 1
}

