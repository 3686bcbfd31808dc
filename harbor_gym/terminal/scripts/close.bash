# End the session and the processes started in it: the pane's descendants, and every process with its TMUX variable.
# The whole script is sent, because the policy may have deleted the session's directory.
exec 2>/dev/null
dir=$1 shell=$2 server=$3

# Sets pids to the processes that are still there; $1 is set to look for marked ones among all processes, too.
collect() {
    local pid child children comm queue=("$shell")
    for ((i = 0; i < ${#queue[@]}; i++)); do
        pid=${queue[i]}
        [ -d "/proc/$pid" ] && pids[pid]=1
        children=
        read -r children <"/proc/$pid/task/$pid/children"
        for child in $children; do queue+=("$child"); done
    done
    [ -z "$1" ] || find_marked
    comm=
    read -r comm <"/proc/$server/comm"
    [[ $comm == tmux* ]] && pids[server]=1
    for pid in "${!pids[@]}"; do
        IFS= read -r -d '' stat <"/proc/$pid/stat"
        [[ -z $stat || ${stat##*) } == Z* ]] && unset "pids[pid]"
        stat=
    done
}

# Each program called costs more than reading a hundred processes' files; before 4.4 bash can't read such a list.
find_marked() {
    local path variables
    if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)); then
        for path in /proc/[0-9]*; do
            variables=()
            mapfile -d '' -t variables <"$path/environ"
            [[ " ${variables[*]}" == *" TMUX=$dir/"* ]] && pids[${path#/proc/}]=1
        done
    else
        while IFS= read -r path; do
            path=${path#/proc/}
            pids[${path%/environ}]=1
        done < <(grep -ls "TMUX=$dir/" /proc/[0-9]*/environ)
    fi
}

# The first pauses are a read that times out, which starts no program.
sleep_until_prompt() {
    if ((turn < 10)) && [ -n "$silence" ]; then read -rt 0.005 -u "$silence"; else sleep 0.025; fi
}

pids=() silence=''
exec {silence}<> <(:)
collect marked
((${#pids[@]})) && kill -TERM "${!pids[@]}"
if [ -n "${pids[server]}" ]; then
    # tmux has nothing to save, and an orderly exit would take longer than the rest of this script.
    kill -KILL "$server"
else
    tmux -S "$dir/socket" kill-server
fi
for ((turn = 0; turn < 70; turn++)); do
    ((${#pids[@]})) && sleep_until_prompt
    collect
    # To look at all processes takes long: what else there is comes to light when the known ones have ended, or must end.
    ((${#pids[@]} && turn < 28)) || collect marked
    ((${#pids[@]})) || break
    # Half a second of grace, then no more.
    ((turn >= 28)) && kill -KILL "${!pids[@]}"
done
rm -rf "$dir"
echo "${#pids[@]} processes left"
