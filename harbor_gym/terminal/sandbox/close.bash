# End the session and everything that was started in it: the pane's descendants, and whatever carries its TMUX variable.
dir=${BASH_SOURCE[0]%/*}
nonce=$1
read -r shell _ <"$dir/pane"

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
    for pid in "${!pids[@]}"; do
        IFS= read -r -d '' stat <"/proc/$pid/stat"
        [[ -z $stat || ${stat##*) } == Z* ]] && unset "pids[pid]"
        stat=
    done
} 2>/dev/null

pids=()
collect
((${#pids[@]})) && kill -TERM "${!pids[@]}" 2>/dev/null
tmux -S "$dir/socket" kill-server 2>/dev/null
exec 9<>"$dir/nap"
for ((turn = 0; turn < 60; turn++)); do
    collect
    ((${#pids[@]})) || break
    # Half a second of grace, then no more.
    ((turn >= 20)) && kill -KILL "${!pids[@]}" 2>/dev/null
    read -rt 0.025 -u 9
done
rm -rf "$dir"
printf '%s closed %s\n' "$nonce" "${#pids[@]}"
