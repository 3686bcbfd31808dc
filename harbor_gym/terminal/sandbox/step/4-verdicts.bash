# Is a wait over, and why?
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Sets evidence to what proves that every process in the foreground waits for input, or for one that does; sets
# patience as the least patient one's. False without such a proof. Where threads share the work, there is none.
find_evidence() {
    local pid least=''
    evidence=
    read_stat "$shell" && foreground=$terminal_group
    # Where its leader is at work, there is no need to find the others.
    { [ "$foreground" = "$shell" ] || read_stat "$foreground"; } && [ "$state" != S ] && return 1
    find_foreground
    for pid in "${members[@]}"; do
        read_stat "$pid" || continue
        [ "$state" = S ] && [ "$threads" = 1 ] && read_runtime "$pid" || return
        if reads_only_terminal "$pid"; then
            has_run "$pid" || return
            [ "$least" = limited ] || least=$patience
        else
            [ -n "$call" ] && [[ $sys_wait == *" $call "* ]] || return
        fi
        evidence+="$pid $call $first $runtime,"
    done
    patience=$least
    [ -n "$patience" ]
}

# True when all that was typed has been taken in, answered and drawn: nobody did anything since, and nobody will before
# more is typed. One who reads for a limited time only has other things to do, but in a full-screen program that is
# waited for no longer than a few ticks of its clock.
has_settled() {
    local before wanted
    find_evidence || return
    before=$evidence wanted=$patience
    if [ "$wanted" = limited ]; then
        query "display-message -p -t %0 '#{alternate_on}'" && [ "${answer[0]}" = 1 ] && sleep_through "$patience_sec"
    else
        sleep_through "$settle_sec"
    fi || return
    # A read that comes back after a while, although nothing was typed, is a way to look whether something was.
    if [[ $evidence == *" $sys_read "* ]] && is_raw && ! [[ $modes == *'min = 1; time = 0;'* ]]; then return 1; fi
    read_stat "$server" && [ "$state" = S ] || return
    read_screen
    # Nothing of all this took place unless everybody is still where they were.
    find_evidence && [ "$evidence" = "$before" ] && [ "$patience" = "$wanted" ] || return
    read_mark
    [ "$mark" = "$typed" ] && [[ $screen != [01]' 1'* ]] || return
    why=tty_read
    if [[ $screen == 1* ]]; then why=fullscreen; fi
}

# True when the shell has printed a new prompt and sleeps on its input, with nothing left to draw.
at_prompt() {
    history=
    read_mark
    [ "$mark" != "$typed" ] && shell_is_idle || return 1
    local seen=$mark is_drawn=''
    [ -n "$call" ] && drain && is_drawn=1
    # More input may be on its way than the line that brought this prompt.
    if [ -z "$is_drawn" ] || [ -n "$types_ahead" ]; then nap "$settle_sec"; fi
    read_mark
    [ "$mark" = "$seen" ] && shell_is_idle || return 1
    [ -n "$is_drawn" ] || { read_stat "$server" && [ "$state" = S ]; }
}

# Makes sure that tmux has drawn all that was written to the pane: a path that no one looks at is written behind it.
# Under a stopped output (C-s) the write would hang.
drain() {
    local turn
    [ -n "$to" ] && [ -n "$can_drain" ] || return
    drains=$((drains + 1))
    printf '\033]7;%s\a' "$nonce$drains" >"$tty" || return
    for ((turn = 0; turn < 100; turn++)); do
        ask_at_last '#{history_size} #{pane_path}' || return
        history=${answer[0]%% *}
        [ "${answer[0]#* }" = "$nonce$drains" ] && return
        ((turn < 3)) || nap 0.001
    done
    can_drain=''
    return 1
}

read_screen() {
    query "display-message -p -t %0 '#{alternate_on} #{pane_dead} #{cursor_x} #{cursor_y} #{history_size}'" \
        'capture-pane -p -t %0' && printf -v screen '%s\n' "${answer[@]}" || screen='0 1'
}

# Looks at the screen; sets why when it has been quiet and the foreground program tells that it waits.
look() {
    read_screen
    case $screen in
        [01]' 1'*)
            await_dead_pane
            return
            ;;
    esac
    read_clock
    read_stat "$shell" || return
    foreground=$terminal_group
    find_foreground
    # A program that looks for input now and then, while it works, is quiet on its screen alone.
    local verdict='' spent=''
    [[ $screen == 1* ]] || sum_runtimes
    if [ "$screen$spent" != "$last_screen$last_spent" ]; then
        last_screen=$screen last_spent=$spent
        quiet_since=$now
    fi
    ((now - quiet_since >= quiet_ms)) || return
    if [[ $screen == 1* ]]; then
        ! foreground_runs && foreground_has_run && verdict=fullscreen
    elif foreground_reads || reads_secret; then
        verdict=tty_read
    elif [ -n "$editing" ] && [ "$foreground" = "$shell" ] && ! read_syscall "$shell" && shell_is_idle; then
        verdict=tty_read
    fi
    [ -n "$verdict" ] || return
    # A command may have ended since the screen was read: what was seen must still hold.
    read_screen
    read_mark
    [ "$screen" = "$last_screen" ] && [ "$mark" = "$typed" ] && why=$verdict
}
