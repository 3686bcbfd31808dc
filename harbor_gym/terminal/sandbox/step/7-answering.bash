# Showing what there is to see.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# The frame stays in tmux, taken in one breath, so that it can be had again if this answer is lost.
show_screen() {
    local step pane="$nonce pane #{pane_dead} #{pane_dead_status} . #{alternate_on} #{cursor_y} #{history_size} #{pane_height}"
    read_mark
    step="$nonce step ${waits:-,} $mark"
    printf '%s\n' "$step"
    if [ -n "$to" ] && [ -z "$history" ] && ask_at_last '#{history_size}'; then history=${answer[0]}; fi
    if [ -n "$to" ] && [ -n "$history" ] && ((history < 200)); then
        # bash reads a file in blocks, but a pipe byte by byte. tmux pauses to save one, and a client that dies then takes
        # its further commands along: all that is one breath comes before.
        : >"$dir/text" && : >"$dir/visible" && ask_at_last '#{@frame}' "set-option -p -F -t %0 @frame '$pane'" \
            "set-option -p -t %0 @step '$step'" \
            "if-shell -F -t %0 '#{alternate_on}' 'capture-pane -b text -t %0 ; save-buffer -b text $dir/text' \
'capture-pane -b text -J -S - -t %0 ; clear-history -t %0 ; capture-pane -b visible -J -t %0 ; \
save-buffer -b text $dir/text ; save-buffer -b visible $dir/visible'" && show_answer && return
    fi
    tm set-option -p -F -t %0 @frame "$pane" \; set-option -p -t %0 @step "$step" \; \
        display-message -p -t %0 '#{@frame}' \; \
        if-shell -F -t %0 '#{alternate_on}' 'capture-pane -b text -t %0 ; capture-pane -p -t %0' \
        "capture-pane -b text -J -S - -t %0 ; capture-pane -p -J -S - -t %0 ; clear-history -t %0 ; \
capture-pane -b visible -J -t %0 ; display-message -p '$nonce visible' ; capture-pane -p -J -t %0" \
        >"$dir/frame" && show_file || printf '%s gone\n' "$nonce"
}

show_answer() {
    local text lines part
    IFS= read -r -d '' part <"$dir/text"
    [ -n "$part" ] || return
    text=${answer[0]}$'\n'$part
    if [[ ${answer[0]#* . } != 1* ]]; then
        IFS= read -r -d '' part <"$dir/visible"
        [ -n "$part" ] || return
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

show_file() {
    local size lines
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

# One call for each buffer: tmux 3.3 loses output where show-buffer is not the last command.
show_again() {
    printf '%s\n' "${answer[0]}"
    query "display-message -p -t %0 '#{@frame}'" &&
        {
            printf '%s\n' "${answer[0]}" && tm show-buffer -b text &&
                { [[ ${answer[0]#* . } == 1* ]] || { printf '%s visible\n' "$nonce" && tm show-buffer -b visible; }; }
        } >"$dir/frame" && show_file || printf '%s gone\n' "$nonce"
}
