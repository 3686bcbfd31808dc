"""The training server's engine for models of Hugging Face: transformers' own classes, LoRA by PEFT.

The server's interpreter has no harbor_gym: ``launcher.py`` imports this folder by its path, as ``harbor_gym_engine``.
So its files import nothing of harbor_gym but one another.
"""
