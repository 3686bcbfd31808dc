"""Write Harbor tasks as a dataset for verl.

python recipes/verl_dataset.py tasks org/name@1.0 --out train.parquet
python recipes/verl_dataset.py tasks --out train.parquet --agent-name harbor_agent
"""

import argparse

from harbor_gym.cli.shared import one_line_errors

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write Harbor tasks as a dataset of verl's.")
    parser.add_argument("tasks", nargs="+", help="directories, org/name@ref, git+URL@COMMIT#path")
    parser.add_argument("--out", required=True, help="the file, which ends with .parquet")
    parser.add_argument("--agent-name", default="harbor_terminal", help="a name of recipes/verl_loops.yaml")
    parser.add_argument("--data-source", default="harbor", help="the name under which verl reports a validation")
    parser.add_argument("--require-audit", metavar="DIR", help="only tasks with a receipt of this harbor-gym audit")
    args = parser.parse_args()
    with one_line_errors():
        from harbor_gym.verl import write_dataset

        settings = {"data_source": args.data_source, "require_audit": args.require_audit}
        print(write_dataset(args.tasks, args.out, agent_name=args.agent_name, **settings))
