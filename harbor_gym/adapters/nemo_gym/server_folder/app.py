"""The server that NeMo Gym starts. Written by ``harbor-gym nemo-gym init``."""

from pathlib import Path

from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint

from harbor_gym.adapters.nemo_gym import HarborGymAgent

HarborGymAgent.root = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    HarborGymAgent.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = HarborGymAgent.run_webserver()
