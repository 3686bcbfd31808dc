# Taking steps.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Stops the process that served this session. True when it had already looked at the screen for this very step.
take_over() {
    local pid key turn
    read -r pid client key <"$dir/channel" && [ -n "$key" ] || return
    for ((turn = 0; turn < 500; turn++)); do
        if [[ $(tr '\0' ' ' <"/proc/$pid/cmdline") == *"step serve $key"* ]]; then
            kill_tree "$pid"
        elif [[ " $(tm list-clients -F '#{client_pid}' | tr '\n' ' ')" == *" $client "* ]]; then
            # What it had not yet read of its commands is lost with it.
            kill -KILL "$client"
        else
            break
        fi
        nap 0.002
    done
    : >"$dir/channel"
    query "display-message -p -t %0 '#{@step}'" && [[ ${answer[0]} == "$nonce step "* ]]
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
    exec 9<>"$dir/nap"
    read -r shell server tty <"$dir/pane"
    read_mark
    typed=$mark waits='' why='' noted_number=0 noted_for=0 begun=$number drains=0 history=''
    if [ "$mode" = again ] && take_over; then
        show_again
    else
        [ "$mode" = again ] && read_noted && read_note
        while (($#)); do
            if [ "$why" != ended ]; then run_command "$1" "$2" "$3"; fi
            [ "$why" = abandoned ] && return
            waits+=,$why number=$((number + 1))
            shift 3
        done
        show_screen
    fi
    printf '%s end\n' "$nonce"
    exec 9<&-
}

# Waits until the session's first prompt is drawn, before anything was typed; not for long.
see_first_prompt() {
    local turn drains=0 history=
    read -r _ typed <"$dir/typed" && [ "$typed" = 0:0:0 ] || return
    read -r shell server tty <"$dir/pane"
    for ((turn = 0; turn < 15; turn++)); do
        shell_is_idle && drain && return
        read -rt 0.001 -u 9
    done
}

serve() {
    local words script
    is_resident=1 nonce=$1
    trap '' PIPE
    if [ -z "$to" ]; then
        [ -e "$dir/path" ] && read -r PATH <"$dir/path"
        hash tmux && tmux=${BASH_CMDS[tmux]}
        exec 9<>"$dir/nap"
        connect
    fi
    see_first_prompt
    printf '%s %s %s\n' $$ "$client" "$nonce" >"$dir/channel"
    printf '%s ready\n' "$nonce"
    while read -ra words; do
        case ${words[0]} in
            put)
                printf %s "${words[2]}" >>"$dir/${words[1]}"
                signed=-1
                give_sign
                ;;
            step)
                if [ -r "$dir/step" ] && [ -x "$BASH" ]; then
                    take_step "${words[@]:1}"
                else
                    printf '%s step , 0:0:0\n%s gone\n%s end\n' "${words[1]}" "${words[1]}" "${words[1]}"
                fi
                ;;
            become)
                # Instead of a file: the policy may have removed it.
                IFS= read -rN "${words[1]}" script && eval "$script"
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
    serve) serve "$@" ;;
    *) take_step "$@" ;;
esac
