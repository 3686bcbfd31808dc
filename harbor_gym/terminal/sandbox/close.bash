# End the session and everything that was started in it: the pane's descendants, and whatever carries its TMUX variable.
# Sent whole, because the policy may have deleted the session's directory.
exec 2>/dev/null
dir=$1 shell=$2 server=$3

collect() {
    local pid child children path queue=("$shell")
    for ((i = 0; i < ${#queue[@]}; i++)); do
        pid=${queue[i]}
        [ -d "/proc/$pid" ] && pids[pid]=1
        children=
        read -r children <"/proc/$pid/task/$pid/children"
        for child in $children; do queue+=("$child"); done
    done
    while IFS= read -r path; do
        path=${path#/proc/}
        pids[${path%/environ}]=1
    done < <(grep -ls "TMUX=$dir/" /proc/[0-9]*/environ)
    [[ $(<"/proc/$server/comm") == tmux* ]] && pids[server]=1
    for pid in "${!pids[@]}"; do
        IFS= read -r -d '' stat <"/proc/$pid/stat"
        [[ -z $stat || ${stat##*) } == Z* ]] && unset "pids[pid]"
        stat=
    done
}

pids=()
collect
((${#pids[@]})) && kill -TERM "${!pids[@]}"
tmux -S "$dir/socket" kill-server
for ((turn = 0; turn < 60; turn++)); do
    collect
    ((${#pids[@]})) || break
    # Half a second of grace, then no more.
    ((turn >= 20)) && kill -KILL "${!pids[@]}"
    sleep 0.025
done
rm -rf "$dir"
echo "${#pids[@]} processes left"
