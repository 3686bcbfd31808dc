"""What the logs held at the start, and what the shop wrote between the steps, as SHA-256."""

LIVE = "9f8ce3f647c3bfdc4dfc9ef0e4dd56d58fabaf4e8912d300580bb6d1998327f9"
FIRST = "bcfe1adb2df83d1cbed14d9e6ac8cae746f78860affbe6225b99bed410ee0e98"
SECOND = "7ca5c4c4f6ee618a2418123333aa5ed551a577d958aed5bdbb6fc819182b7280"
TRAFFIC = "6e5a29874c0dd2ba8ef89d927bd5d45888521f54d5fb071ea0b3fac7f5db04d7"
