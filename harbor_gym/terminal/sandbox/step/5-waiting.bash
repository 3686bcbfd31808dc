# Waiting.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# The session is over: give tmux a moment to notice, for it holds the last output and the exit code.
await_dead_pane() {
    local turn
    why=ended
    for ((turn = 0; turn < 200; turn++)); do
        query "display-message -p -t %0 '#{pane_dead} #{pane_dead_status}#{pane_dead_signal}'" || return
        case ${answer[0]} in
            1\ ?*) return ;;
            # Before 3.3 tmux keeps no signal: what has no status yet may never get one.
            1*) ((turn < 170)) && turn=170 ;;
        esac
        # tmux 3.3 was seen to miss the signal and to leave a zombie; another one makes it look again.
        ((turn % 170 > 5)) && kill -CHLD "$server"
        nap 0.01
    done
}

# Waits at most $1 ms. $2 is set when nothing can end the wait early but the end of the session.
wait_until_done() {
    local end next_look started tries=0 dozes=0
    why=
    last_screen='' last_spent=''
    read_clock
    started=$now
    quiet_since=$now
    end=$((now + $1))
    next_look=$((now + 30))
    # Through the control client keys are typed in no time: the first look would be in vain.
    if [ -n "$to" ] && [ -z "$2" ] && (($1 >= 10)); then doze '' && dozes=1; fi
    while [ -z "$why" ]; do
        if ! read_stat "$shell"; then
            await_dead_pane
        elif [ -z "$2" ] && at_prompt; then
            why=prompt
        elif [ -z "$2" ] && [ -n "$can_settle" ] && ((dozes)) && has_settled; then
            break
        else
            read_clock
            if ((now >= end)); then
                why=deadline
                if [ -n "$2" ] || { [ -n "$editing" ] && [ "$group" = "$terminal_group" ]; }; then why=idle; fi
            elif ((now >= next_look)); then
                if [ -z "$2" ]; then look; fi
                next_look=$((now + (now - started < 500 ? 40 : 100)))
            fi
        fi
        if [ -z "$why" ]; then doze "$2" && dozes=$((dozes + 1)); fi
        give_sign
        if is_abandoned; then why=abandoned; fi
    done
}

# Until the next moment at which there could be news. The prompt's hook wakes us up; what follows it takes a moment.
# $1 is set when nothing can end the wait early but the end of the session.
doze() {
    local left=$((next_look < end ? next_look - now : end - now))
    if [ "$mark" != "$typed" ] && ((++tries < 30)); then
        nap 0.0005
    elif [ -z "$1" ] && [ -n "$can_settle" ] && ((now - started >= 40 && now - started < 200)); then
        nap 0.01
    elif [ -n "$1" ] || ((now - started >= 40)); then
        ((left < 10)) && left=10
        ((left > 50)) && left=50
        nap "0.0$left"
    elif ((dozes)); then
        nap 0.01
    else
        nap 0.004
    fi
}

# Sleeps, and says then what there is to see.
wait_exactly() {
    # The clock shows whole hundredths: without one more the wait could be too short.
    wait_until_done "$(($1 ? $1 + 10 : 0))" exact
    [ "$why" = idle ] || return
    why=deadline
    read_stat "$shell"
    foreground=$terminal_group
    find_foreground
    if at_prompt; then
        why=prompt
    elif read_screen && [[ $screen == 1* ]]; then
        why=fullscreen
    elif foreground_reads; then
        why=tty_read
    fi
}
