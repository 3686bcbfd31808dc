#!/usr/bin/env bash
# Makes a root file system in the directory $1 with the programs of all sessions, as root, from Debian's, npm's and Python's
# packages: make bench ARGS="truth --env local --rootfs DIRECTORY". The base images have few of them.
set -euo pipefail
root=${1:?directory}
packages=(
  bc bsdextrautils ca-certificates cron dash dc dialog ed fish fzf gdb git htop ipython3 irb less lua5.4 man-db nano ncurses-bin
  nodejs npm procps python3 python3-pip python3-venv screen sqlite3 sudo tclsh tmux vim whiptail zsh
)
mkdir -p "$root"
mmdebstrap --variant=apt --include="$(IFS=, && echo "${packages[*]}")" bookworm - | tar -x -C "$root" --exclude='./dev/*'

programs=$root/opt/programs
mkdir -p "$programs"
cat >"$programs/package.json" <<'END'
{"name": "programs", "version": "1.0.0", "type": "module"}
END
npm install --prefix "$programs" --silent ink@4 react@18 @inquirer/prompts@5 @clack/prompts@0.7
cat >"$programs/ink-keys.js" <<'END'
import React, {useState} from 'react';
import {render, Text, useApp, useInput} from 'ink';
const Keys = () => {
  const [keys, setKeys] = useState('');
  const {exit} = useApp();
  useInput(key => (key === 'q' ? exit() : setKeys(keys + key)));
  return React.createElement(Text, null, 'keys: ' + keys);
};
render(React.createElement(Keys));
END
cat >"$programs/inquirer-asks.js" <<'END'
import {confirm, input, select} from '@inquirer/prompts';
const name = await input({message: 'name'});
const sure = await confirm({message: 'sure'});
console.log(name, sure, await select({message: 'which', choices: [{value: 'x'}, {value: 'y'}]}));
END
cat >"$programs/clack-asks.js" <<'END'
import {confirm, intro, outro, spinner, text} from '@clack/prompts';
intro('questions');
const name = await text({message: 'name'});
await confirm({message: 'sure'});
const work = spinner();
work.start('working');
await new Promise(done => setTimeout(done, 1500));
work.stop('done');
outro(name);
END
python3 -m pip install --quiet --target "$programs/python" --python-version 3.11 --only-binary=:all: textual
cat >"$programs/textual-late.py" <<'END'
import asyncio
import sys

from textual.app import App
from textual.widgets import Static


class Late(App):
    def compose(self):
        yield Static("ready", id="answer")

    async def on_key(self, event):
        if event.key == "q":
            self.exit()
        else:
            await asyncio.sleep(float(sys.argv[1]))
            self.query_one("#answer").update(f"answer {event.key}")


Late().run()
END
start() {
  printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$root/usr/local/bin/$1"
  chmod 755 "$root/usr/local/bin/$1"
}
for name in ink-keys inquirer-asks clack-asks; do start "$name" "node /opt/programs/$name.js"; done
start textual-late 'env PYTHONPATH=/opt/programs/python python3 /opt/programs/textual-late.py'
