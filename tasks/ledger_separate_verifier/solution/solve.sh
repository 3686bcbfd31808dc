#!/bin/bash
set -e
cd /home/agent
awk -F, '
    NR == 1 || seen[$1]++ { next }
    $6 == "reverse" { cancelled[$3] = 1; next }
    { ids[++n] = $1; debit[$1] = $3; credit[$1] = $4; amount[$1] = $5 }
    END {
        for (i = 1; i <= n; i++) {
            id = ids[i]
            if (id in cancelled) continue
            balance[debit[id]] += amount[id]
            balance[credit[id]] -= amount[id]
        }
        for (name in balance) printf "%s,%.2f\n", name, balance[name]
    }' ledger.csv | sort | sed '1i account,balance' >balances.csv
