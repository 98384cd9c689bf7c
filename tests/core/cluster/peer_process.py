"""One worker process for `test_heartbeat.py`: follows commands on stdin, and reports results on stdout.

To start quickly it imports no installed package (`-S`).

python peer_process.py '{"workers": ["127.0.0.1:4321"], "index": 0, "about": {}, "deadline": 5, "timeout": 2}'
"""

import json
import socket
import sys
import types
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path[0] = str(CHECKOUT)
package = types.ModuleType("core.cluster")  # without its imports: workers meet before TensorFlow is there
package.__path__ = [str(CHECKOUT / "core" / "cluster")]
sys.modules["core.cluster"] = package

from core.cluster.heartbeat import Heartbeat  # noqa: E402
from core.cluster.topology import Cluster  # noqa: E402
from core.errors import TapeloopError  # noqa: E402


def say(event: str, text: str | None = None) -> None:
    # In one piece: two threads may write at once.
    sys.stdout.write(json.dumps([event, text]) + "\n")
    sys.stdout.flush()


def main(order: dict) -> int:
    cluster = Cluster(tuple(order["workers"]), order["index"])
    try:
        say("started")
        peers = Heartbeat.meet(cluster, about=order["about"], deadline=order["deadline"], token=order["token"])
    except TapeloopError as error:
        say(type(error).__name__, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    assert "tensorflow" not in sys.modules
    say("met")
    peers.watch(timeout=order["timeout"], on_lost=lambda sentence: say("lost", sentence))
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        if command == "leave":
            peers.leave(rest or None)
            say("left", peers.lost)
        elif command == "word":
            say("word", peers.wait_for_word(float(rest)))
        elif command == "do":
            peers.show(lambda doing=rest: doing)
            say("doing")
        elif command == "elsewhere":
            say("elsewhere", json.dumps(peers.elsewhere(rest)))
        elif command == "listen":
            listen(cluster)
            say("listened")
        elif command == "exit":
            break
    return 0


def listen(cluster: Cluster) -> None:
    host, port = cluster.address.split(":")
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((host, int(port)))
        again.listen()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
