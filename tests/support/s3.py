"""An S3-speaking server of the test's own, from a Python package: it checks signatures and rights, and keeps versions."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

REGION = "eu-central-1"
START_LIMIT_S = 60.0
_POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'


@dataclass
class S3Server:
    """A running server and the one key that it takes."""

    url: str
    access_key: str = ""
    secret_key: str = ""

    def client(self, service: str = "s3") -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.access_key or "anybody",
            aws_secret_access_key=self.secret_key or "anything",
            config=Config(retries={"max_attempts": 1}),
        )

    def make_bucket(self, name: str, *, versions: bool) -> None:
        s3 = self.client()
        s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        if versions:
            s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})

    def put(self, bucket: str, files: dict[str, bytes], **more: str) -> None:
        s3 = self.client()
        for key, content in files.items():
            s3.put_object(Bucket=bucket, Key=key, Body=content, **more)


@contextlib.contextmanager
def s3_server(log: Path) -> Iterator[S3Server]:
    """Until its signatures are checked it lets anybody in; that is how it gets its key."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = S3Server(f"http://127.0.0.1:{port}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"}
        )
    try:
        wait_for_port(port, process, log)
        iam = server.client("iam")
        iam.create_user(UserName="headrace")
        iam.put_user_policy(UserName="headrace", PolicyName="all", PolicyDocument=_POLICY)
        key = iam.create_access_key(UserName="headrace")["AccessKey"]
        server.access_key, server.secret_key = key["AccessKeyId"], key["SecretAccessKey"]
        checked = {"Content-Type": "application/octet-stream"}  # or the body is taken for a form
        reset = urllib.request.Request(f"{server.url}/moto-api/reset-auth", data=b"0", headers=checked)
        with urllib.request.urlopen(reset, timeout=10):
            pass
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)


@dataclass
class CuttingProxy:
    """Hands bytes through, and ends each coming connection after so many bytes of its answer."""

    port: int = 0
    cut_after_bytes: list[int] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def cutting_proxy(target_port: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.port = listener.getsockname()[1]
        accepting = threading.Thread(target=_accept, args=(listener, target_port, proxy))
        accepting.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listener: socket.socket, target_port: int, proxy: CuttingProxy) -> None:
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        proxy.connections += 1
        with caller, socket.create_connection(("127.0.0.1", target_port)) as server:
            _hand_through(caller, server, proxy)


def _hand_through(caller: socket.socket, server: socket.socket, proxy: CuttingProxy) -> None:
    """One request and its answer: our client opens a connection for each."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += caller.recv(65536)
    server.sendall(request)
    left = proxy.cut_after_bytes.pop(0) if proxy.cut_after_bytes and b"GET " in request[:4] else 1 << 60
    while left and (chunk := server.recv(min(65536, left))):
        left -= len(chunk)
        caller.sendall(chunk)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(log.read_text(errors="replace"))
