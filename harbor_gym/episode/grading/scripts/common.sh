# shellcheck shell=sh disable=SC2034  # kills is read by the script that follows
# Comes before the other scripts: only the answer is printed, PATH finds no program of the policy, and $kills is the
# number of the memory limit's kills so far, "-" where not reported. Each other script begins with a "set -- ...".
exec 2>/dev/null
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
kills=-
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r "$file" ] || continue
    while read -r name value; do [ "$name" = oom_kill ] && kills=$value; done <"$file"
    break
done

# Set left to an entry of directory $1; fail if it is empty.
find_left() {
    for left in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ -e "$left" ] || [ -L "$left" ]; then return 0; fi
    done
    return 1
}

# Set state, parent, flags, threads and start of process $1; fail if it is gone.
look() {
    stat=
    while IFS= read -r line || [ -n "$line" ]; do stat="$stat$line "; done <"/proc/$1/stat"
    [ -n "$stat" ] || return 1
    # shellcheck disable=SC2086  # the fields after the name, which may hold anything
    set -- ${stat##*) }
    state=$1 parent=$2 flags=$7 threads=${18} start=${20}
}

# Set objects to the System V objects, a blank before each.
list_objects() {
    objects=''
    for kind in shm sem msg; do
        while read -r key number _; do
            [ "$key" = key ] || objects="$objects $kind:$number"
        done <"/proc/sysvipc/$kind"
    done
}
