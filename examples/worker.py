"""A fencepost worker in Python, to run and to read: docs/protocol.md says why each frame is sent.

    pip install -r examples/requirements.txt
    python examples/worker.py --connect ws://127.0.0.1:7434 --queue emails --types echo,sleep,fail
"""

import argparse, asyncio, json, os, random, signal, sys, uuid

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

FRAME_BYTES = 4 * 1024 * 1024  # the largest message that we take


class Denied(Exception):
    """The dispatcher does not let us in; args are its reason and whether that is final."""


class Failure(Exception):
    """A handler failed. kind is retryable or terminal; retry_after_ms may replace the backoff."""

    def __init__(self, kind, name, message, **more):
        super().__init__(message)
        self.report = {"kind": kind, "class": name, "message": message, **more}


# Handlers. Each gets the task and a way to report progress, and answers with the fields of `succeeded`: a JSON value
# under "json", or base64 under "payload" with its "content_type". A handler may run more than once for one task:
# task["idempotency_key"] is the same each time.


async def echo(task, progress):
    return {name: task[name] for name in ("json", "payload", "content_type") if name in task}


async def sleep(task, progress):
    await progress("asleep")
    await asyncio.sleep(task["json"]["ms"] / 1000)
    return {"json": {"slept": task["json"]["ms"], "attempt": task["attempt"]}}


async def fail(task, progress):
    raise Failure(task["json"]["kind"], "example", "The payload asks for it.")


HANDLERS = {"echo": echo, "sleep": sleep, "fail": fail}


class Worker:
    def __init__(self, options):
        self.options, self.types = options, options.types.split(",")
        self.instance = uuid.uuid4().hex  # new at every start of this process
        self.held = {}  # token: task id, of all that we answer for: running, or finished without an ack
        self.running = {}  # token: the asyncio task of its handler
        self.unacked = {}  # token: its result
        self.limits = {}
        self.socket = None
        self.draining = asyncio.Event()

    async def run(self):
        wait = 0.1
        while not self.is_done():
            address = self.options.connect[0]
            self.options.connect.append(self.options.connect.pop(0))  # the next time, another replica
            try:
                # Both ends prove each other alive by frames, so the library's own pings are off.
                async with connect(f"{address}/v1/workers", max_size=FRAME_BYTES, compression=None,
                                   ping_interval=None, close_timeout=1) as socket:
                    await self.register(socket)
                    wait = 0.1
                    self.socket = socket
                    await self.session(socket)
            except Denied as denied:
                print("denied:", *denied.args, file=sys.stderr)
                if denied.args[1]:
                    return 1
            except (OSError, WebSocketException, asyncio.TimeoutError) as error:
                if not self.is_done():
                    print("connection lost:", repr(error), file=sys.stderr)
            self.socket = None
            if not self.is_done():
                await asyncio.sleep(wait * random.uniform(0.5, 1))
                wait = min(wait * 2, 5)
        return 0

    def is_done(self):
        return self.draining.is_set() and not self.held

    async def register(self, socket):
        """Says who we are and which tasks we still have; the answer is welcome or denied."""
        await socket.send(json.dumps({"register": {
            "protocol": 1, "identity": self.options.identity, "namespaces": [self.options.namespace],
            "task_queue": self.options.queue, "task_types": self.types, "slots": self.options.slots,
            "max_frame_bytes": str(FRAME_BYTES), "instance": self.instance,
            "resume": [{"task_id": id, "token": token} for token, id in self.held.items()],
        }}))
        answer = json.loads(await asyncio.wait_for(socket.recv(), 20))
        if denied := answer.get("denied"):
            raise Denied(denied["message"], denied["final"])
        self.limits = answer["welcome"]
        for token in self.limits.get("abandoned", []):  # they are somebody else's by now
            self.forget(token)
        print("welcome", self.limits["worker_id"], flush=True)

    async def session(self, socket):
        """One connection, until it ends, the dispatcher sends us away, or we have drained."""
        for token in list(self.unacked):
            await self.report(token)
        drain = asyncio.create_task(self.drain())
        silence = int(self.limits["silence_window_ms"]) / 1000
        try:
            while not self.is_done():
                frame = json.loads(await asyncio.wait_for(socket.recv(), silence))
                if "tasks" in frame:
                    await self.take(frame["tasks"]["tasks"])
                elif "acks" in frame:  # recorded or superseded, we need not keep it any more
                    for ack in frame["acks"]["acks"]:
                        self.forget(ack["token"])
                elif "cancel" in frame:
                    for token in frame["cancel"]["tokens"]:
                        if token in self.running:
                            self.running[token].cancel()
                elif "ping" in frame:
                    await self.send({"pong": frame["ping"]})
                elif "go_away" in frame:  # what runs goes on; we name it to whoever lets us in next
                    return
        finally:
            drain.cancel()

    async def drain(self):
        await self.draining.wait()
        await self.send({"drain": {}})
        if self.is_done():
            await self.socket.close()

    async def take(self, tasks):
        for task in tasks:
            token = task["token"]
            if self.draining.is_set():
                answer = {"refused": {"tokens": [token], "reason": "draining"}}
            elif task["task_type"] not in HANDLERS:
                answer = {"refused": {"tokens": [token], "reason": "unknown_type"}}
            elif len(self.running) >= self.options.slots:
                answer = {"refused": {"tokens": [token], "reason": "no_slot"}}
            else:
                answer = {"accepted": {"tokens": [token]}}
                self.held[token] = task["task_id"]
                self.running[token] = asyncio.create_task(self.handle(task))
                await asyncio.sleep(0)  # it begins, or a cancel that follows at once would end it without a word
            print(*answer, task["task_id"], flush=True)
            await self.send(answer)

    async def handle(self, task):
        """Runs the handler, and keeps what came of it until it is acked."""
        token = task["token"]
        try:
            progress = lambda text: self.send({"progress": {"token": token, "text": text}})
            outcome = {"succeeded": await HANDLERS[task["task_type"]](task, progress)}
            # A message above the limit would end the connection, again and again.
            if len(json.dumps(outcome)) > int(self.limits["max_frame_bytes"]) - 1024:
                raise Failure("terminal", "result_too_large", "The result is above the limit.")
        except asyncio.CancelledError:
            outcome = {"failed": {"kind": "cancelled", "class": "cancelled", "message": "Asked to stop."}}
        except Failure as failure:
            outcome = {"failed": failure.report}
        except Exception as error:
            outcome = {"failed": {"kind": "retryable", "class": type(error).__name__, "message": str(error)}}
        if self.running.pop(token, None):
            self.unacked[token] = {"token": token, **outcome}
            await self.report(token)

    async def report(self, token):
        await self.send({"results": {"results": [self.unacked[token]]}})

    def forget(self, token):
        self.held.pop(token, None), self.unacked.pop(token, None)
        if running := self.running.pop(token, None):
            running.cancel()

    async def send(self, frame):
        try:
            if self.socket:
                await self.socket.send(json.dumps(frame))
        except WebSocketException:
            pass  # results are sent again in the next session; nothing else matters by then


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", action="append", required=True, help="ws://host:port, for each replica")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--types", default="echo,sleep,fail")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--identity", default=f"worker.py-{os.getpid()}")
    worker = Worker(parser.parse_args())
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, worker.draining.set)
    return await worker.run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
