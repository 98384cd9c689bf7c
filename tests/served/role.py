"""Gives a fork of the command its role in a cluster before it begins."""

import json
import os


def begin(cluster, job, index, token=""):
    task = {"type": job, "index": index}
    os.environ |= {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}), "TAPELOOP_TOKEN": token}
