# Showing what there is to see.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Screen and mark are taken in one breath, and stay in tmux, so that they can be read again if this answer is lost. tmux
# pauses to save a buffer, and a client that exits then takes its further commands along: all that is one breath comes
# before.
show_screen() {
    local turn pane="$nonce pane #{pane_dead} #{pane_dead_status} #{pane_dead_signal} . #{alternate_on} #{cursor_y} #{history_size} #{pane_height}"
    for turn in 1 2; do
        ask "set-option -p -F -t %0 @frame '$pane|#{pane_path}'" "set-option -p -t %0 @step '$nonce step ${waits:-,}'" \
            "if-shell -F -t %0 '#{alternate_on}' 'capture-pane -b text -t %0 ; capture-pane -b visible -t %0' \
'capture-pane -b text -J -S - -t %0 ; clear-history -t %0 ; capture-pane -b visible -J -t %0'"
        show_again && return
    done
    find_remains
    printf '%s step %s 0:0:\n%s gone %s\n' "$nonce" "${waits:-,}" "$nonce" "$remains"
}

# Sets remains to what is left of a session that shows no screen: for the log.
find_remains() {
    remains=''
    [ -x "$tmux" ] && remains+='tmux '
    [ -e "$dir/socket" ] && remains+='socket '
    [ -d "/proc/$server" ] && remains+='server '
    read_stat "$shell" && remains+='shell '
    [ -n "$to" ] && remains+='client '
    remains="left of it: ${remains:-nothing}"
}

# False where tmux holds no answer to this very step.
show_again() {
    local step frame history
    : >"$dir/text" && : >"$dir/visible" && query "display-message -p -t %0 '#{@step}'" \
        "display-message -p -t %0 '#{@frame}'" "save-buffer -b text $dir/text" "save-buffer -b visible $dir/visible" || return
    step=${answer[0]} frame=${answer[1]}
    [[ $step == "$nonce step "* && -s $dir/text ]] || return
    take_mark "${frame#*|}"
    printf '%s %s\n' "$step" "$mark"
    frame=${frame%%|*}
    # bash takes its time over a long text.
    history=${frame% *}
    if ((${history##* } < 200)); then show_short "$frame"; else show_long "$frame"; fi
}

show_short() {
    local text lines part
    IFS= read -r -d '' part <"$dir/text"
    text=$1$'\n'$part
    if [[ ${1#* . } != 1* ]]; then
        IFS= read -r -d '' part <"$dir/visible"
        text+=$nonce' visible'$'\n'$part
    fi
    if ((${#text} <= 2 * limit)); then
        printf %s "$text"
    else
        lines=${text//[^$'\n']/}
        printf '%s\n%s cut %s %s\n' "${text::limit}" "$nonce" "${#lines}" "${#text}"
        printf %s "${text: -limit}"
    fi
}

show_long() {
    local size lines
    {
        printf '%s\n' "$1"
        cat "$dir/text"
        if [[ ${1#* . } != 1* ]]; then
            printf '%s visible\n' "$nonce"
            cat "$dir/visible"
        fi
    } >"$dir/frame"
    size=$(wc -c <"$dir/frame")
    if ((size <= 2 * limit)); then
        cat "$dir/frame"
    else
        lines=$(wc -l <"$dir/frame")
        head -c "$limit" "$dir/frame"
        printf '\n%s cut %s %s\n' "$nonce" "$lines" "$size"
        tail -c "$limit" "$dir/frame"
    fi
    : >"$dir/frame"
}
