# Taking steps.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Stops the process that served this session.
take_over() {
    local pid key turn client_there=''
    read -r pid key <"$dir/channel" && [ -n "$key" ] || return
    read -r client_there <"$dir/client"
    for ((turn = 0; turn < 500; turn++)); do
        if is_called_with "$pid" "step serve $key"; then
            kill_tree "$pid"
        elif is_client "$client_there"; then
            # Commands that it had not read yet are lost with it.
            kill -KILL "$client_there"
            sleep 0.002
        elif query "list-clients -F '#{client_pid}'" && [[ $'\n'${answer[0]}$'\n' == *$'\n'"$client_there"$'\n'* ]]; then
            # Where /proc is hidden.
            kill -KILL "$client_there"
            sleep 0.002
        else
            break
        fi
    done
    write_over channel ''
}

kill_tree() {
    local child children=''
    kill -STOP "$1"
    read -r children <"/proc/$1/task/$1/children"
    kill -KILL "$1"
    for child in $children; do kill_tree "$child"; done
}

take_step() {
    nonce=$1 limit=$2 number=$3
    shift 3
    waits='' why='' noted_number=0 begun=$number is_last='' may_capture='' is_captured=''
    read_pane && is_reachable || why=ended
    [[ $mode == again ]] && take_over
    if [[ $mode != again ]] || ! show_again; then
        # No later command than the step's own last one can have been typed.
        [[ $mode == again ]] && read_note && ((noted_number < begun + $# / 3)) || noted_number=0
        while (($#)); do
            (($# > 3)) || is_last=1
            is_cut=''
            if [[ $why != @(ended|untyped) ]]; then run_command "$1" "$2" "$3"; fi
            [[ $why == abandoned ]] && return
            waits+=,$why$is_cut number=$((number + 1))
            shift 3
        done
        # A session that ended meanwhile shows its last screen once more.
        is_reachable || { waits=${waits%,*},ended is_captured=''; }
        show_screen
    fi
    held+="$nonce end"$'\n'
    # In pieces of the size of a buffer: bash prints the rest of a longer text line by line.
    for ((place = 0; place < ${#held}; place += 4096)); do printf %s "${held:place:4096}"; done
    held=''
}

serve() {
    is_resident=$1 nonce=$1
    trap '' PIPE
    if [ -z "$to" ]; then
        [ -e "$dir/path" ] && read -r PATH <"$dir/path"
        connect
    fi
    write_over channel "$$ $nonce"
    read_pane
    printf '%s ready\n' "$nonce"
    # With its length first: bash reads up to a line's end byte by byte.
    while IFS= read -rN 8 size && IFS= read -rN "$size" request; do
        # shellcheck disable=SC2206  # it has no character of a pattern
        words=($request)
        case ${words[0]} in
            put)
                printf %s "${words[2]}" >>"$dir/${words[1]}"
                signed=-1
                heartbeat
                ;;
            step)
                take_step "${words[@]:1}"
                ;;
            become)
                # Instead of a file: the policy may have removed it.
                eval "${request#become }"
                exit
                ;;
        esac
    done
    disconnect
}

mode=$1
shift
case $mode in
    load) ;;
    *)
        trap '' PIPE
        take_step "$@"
        ;;
esac
