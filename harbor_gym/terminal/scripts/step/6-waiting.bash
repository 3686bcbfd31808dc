# Waiting.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# The session is over: gives tmux a moment to notice, as it has the last output and the exit code.
await_dead_pane() {
    local turn
    why=ended
    for ((turn = 0; turn < 200; turn++)); do
        query "display-message -p -t %0 '#{pane_dead} #{pane_dead_status}#{pane_dead_signal}'" || return
        case ${answer[0]} in
            0*) shell_lives && why='' && return ;;
            1\ ?*) return ;;
            # Before 3.3 tmux keeps no signal: a pane without a status may never get one.
            1*) ((turn < 100)) && turn=100 ;;
        esac
        # tmux 3.3 may miss the signal and leave a zombie; another SIGCHLD makes it check again.
        ((turn % 100 > 5)) && kill -CHLD "$server"
        await_news 0.01
    done
}

# Waits for the first prompt, or until a shell that marks none reads. False if the shell ends before.
# The kernel may deliver a prompt late, when its shell already reads: a reading shell must do so for half a second.
await_first_prompt() {
    local end next settled=0
    read_clock
    end=$((now + 10000)) next=$((now + 100)) news=1
    while ((now < end)); do
        # tmux reports a mark: without news it is only asked now and then.
        if [ -n "$news" ] || ((now >= next)); then
            news=''
            read_mark && [ "$kind" = p ] && return
            # Without an answer of tmux is_dead is not known: that is no end of the shell.
            [ "$is_dead" != 1 ] || return
        fi
        shell_lives || return
        if ((now >= next)); then
            needs_run=''
            if has_settled; then ((++settled < 5)) || return 0; else settled=0; fi
            [ "$kind" != p ] || return 0
            next=$((now + 100))
        fi
        await_news 0.01
        read_clock
    done
    return 0
}

# Waits at most $1 ms. $2 is set if only the end of the session can end the wait early.
wait_until_done() {
    why='' is_early=1 last_screen='' last_spent='' spent_then=0 raw_looks=0 polls=0 blocker='' is_asleep='' looks_skipped=0
    due='' last_evidence=''
    settle_next=$soon_sec
    read_clock
    started=$now quiet_since=$now idle_since=$now
    end=$((now + $1)) next_look=$((now + 30))
    while [[ -z $why ]]; do
        acts=''
        if ! shell_lives; then
            await_dead_pane
        elif [[ -z $2 && -n $news ]] && at_prompt; then
            break
        elif [[ -z $2$is_early ]] && ! leader_acts && [[ -n $can_settle ]] && has_settled; then
            break
        else
            [[ -n $is_early ]] || read_clock
            if ((now >= end)); then
                end_wait "$2"
            elif ((now >= next_look)); then
                if [[ -z $2 ]] && ! needs_no_look; then look; fi
                next_look=$((now + (now - started < 500 ? 40 : 100)))
            fi
        fi
        if [[ -z $why ]]; then pause "$2"; fi
        is_early=''
        heartbeat
        if [[ -z $why ]] && is_abandoned; then why=abandoned; fi
    done
}

# True if the foreground's leader runs, or all of it has slept since it was examined: nobody waits for input then. Every
# eighth look is made all the same.
needs_no_look() {
    [[ -n $acts ]] || { [[ -n $is_asleep && -z $prompt_before ]] && is_blocked; } || return
    ((++looks_skipped % 8))
}

# True if the leader of the terminal's foreground runs: `examine` is false then. The shell is the process read last.
leader_acts() {
    [[ -n $state ]] && ((terminal_group > 0)) || return
    [[ $terminal_group == "$shell" ]] || read_stat "$terminal_group" || return
    [[ $state != S ]] || return
    acts=1 settle_next=$settle_sec blocker='' is_asleep=''
}

# Ends a wait whose time is up: a prompt at the last moment counts.
end_wait() {
    if [ -z "$1" ] && at_prompt; then return; fi
    why=deadline
    if [ -n "$1" ] || { [ -z "$keys_end_line" ] && at_shell; }; then why=idle; fi
}

# True if the shell waits at a prompt, as far as its marks and the kernel report it.
at_shell() {
    read_stat "$shell" && ((terminal_group > 0)) && [ "$group" != "$terminal_group" ] && return 1
    [[ $kind == [pm] ]] || { read_stat "$shell" && [ "$group" = "$terminal_group" ]; }
}

# Pauses until the next moment at which there could be news. $1 is $2 of wait_until_done.
pause() {
    local left=$((next_look < end ? next_look - now : end - now)) most=50
    [[ -n $news && -z $1 ]] && most=5
    if [[ -z $1 && -n $can_settle ]] && ((now - started < 200)); then
        most=$((now - started < 40 ? 10 : (now - started) / 3))
    fi
    if [[ -n $blocker ]] && ((now - started > 4 * most)); then most=$((now - started < 200 ? (now - started) / 4 : 50)); fi
    # The shell first has to start what the keys tell it to, and reports its own prompt.
    if [[ -z $1 && -n $is_early && $foreground != "$shell" ]]; then most=4; fi
    ((most > 50)) && most=50
    left=$((left > most ? most : left < 1 ? 1 : left))
    printf -v left '0.%03d' "$left"
    if [[ -z $1 && -n $news ]]; then
        # The news is known already: this only gives the shell time to reach its prompt.
        news='' && await_news "$left" && news=1
    else
        await_news "$left"
    fi
}

# Sleeps for exactly $1 ms, then sets why by the state at the end.
wait_exactly() {
    # The clock has a resolution of 10 ms: without 10 more the wait could be too short.
    wait_until_done "$(($1 ? $1 + 10 : 0))" exact
    [ "$why" = idle ] || return
    why=deadline
    read_screen
    if at_new_prompt; then
        why=prompt
        if [ "$kind" = m ]; then why=tty_read; fi
    elif [ "$is_full" = 1 ]; then
        why=fullscreen
    elif examine thorough && [ -z "$is_hidden$is_mixed" ] && still_waits; then
        why=tty_read
    fi
}
