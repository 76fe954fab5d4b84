"""Answers to an agent's own calls, in each style: one that calls a tool, and one that limits the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Answer = tuple[int, Mapping[str, str], bytes]

CALL = "call_7f3a"  # the id of the tool call, by which later requests show that they have it
# A tool of each program that reads alone, so that nobody is asked for permission.
_TOOLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "claude": ("Glob", {"pattern": "*"}),
    "codex": ("update_plan", {"plan": [{"step": "look around", "status": "in_progress"}]}),
    "gemini": ("list_directory", {"dir_path": "."}),
    "opencode": ("glob", {"pattern": "*"}),
}


def call_tool(name: str) -> Answer:
    """Return a stream in which the model calls a tool of the program, so that it comes back with the result."""
    tool, arguments = _TOOLS[name]
    events = {"claude": _anthropic, "gemini": _gemini}.get(name, _openai)(tool, arguments)
    text = "".join(f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n" for event in events)
    if name == "gemini":
        text = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events)
    return 200, {"content-type": "text/event-stream"}, text.encode()


def limit(name: str, seconds: int) -> Answer:
    """Return a 429 with the seconds until the limit ends."""
    body: dict[str, Any] = {
        "error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}
    }
    if name == "claude":
        body = {"type": "error", "error": {"type": "rate_limit_error", "message": "Rate limit reached."}}
    elif name == "gemini":
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds}s"}
        body = {"error": {"code": 429, "message": "Limited.", "status": "RESOURCE_EXHAUSTED", "details": [info]}}
    headers = {"content-type": "application/json", "retry-after": str(seconds)}
    return 429, headers, json.dumps(body).encode()


def _anthropic(tool: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    block = {"type": "tool_use", "id": CALL, "name": tool, "input": {}}
    given = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    return [
        {"type": "message_start", "message": {**message, "usage": {"input_tokens": 10, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": given},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def _openai(tool: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = json.dumps(arguments)
    call = {"type": "function_call", "id": "fc_1", "call_id": CALL, "name": tool, "arguments": text}
    done = {**call, "status": "completed"}
    answer = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m"}
    used: dict[str, Any] = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    used |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    place = {"output_index": 0, "item_id": "fc_1"}
    began = {**call, "arguments": "", "status": "in_progress"}
    return [
        {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": began},
        {"type": "response.function_call_arguments.delta", **place, "delta": text},
        {"type": "response.function_call_arguments.done", **place, "arguments": text},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": {**answer, "status": "completed", "output": [done], "usage": used}},
    ]


def _gemini(tool: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    call = {"functionCall": {"id": CALL, "name": tool, "args": arguments}}
    used = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    content = {"role": "model", "parts": [call]}
    return [{"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": used}]
