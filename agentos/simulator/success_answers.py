"""Bodies of successful answers: small, in the real shapes, whole or as a stream of events.

Built by string formatting from templates: everything put into them is a number or was already written as JSON.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from . import gemini_answers
from .model_lists import embeddings
from .organisation_state import encrypted_content, organisation_mark
from .parsed_request import ParsedRequest, StreamUsage
from .rules import Admitted


@functools.lru_cache(maxsize=64)
def _quoted(text: str) -> str:
    return json.dumps(text)


_CHAT = (
    '{"id":"chatcmpl-%(call)d","object":"chat.completion","created":%(created)d,"model":%(model)s,"choices":[{"index":0,'
    '"message":{"role":"assistant","content":"Simulated answer %(call)d.","refusal":null},"logprobs":null,'
    '"finish_reason":"%(finish)s"}],"usage":%(usage)s,"system_fingerprint":null}'
)
_COMPLETION = (
    '{"id":"cmpl-%(call)d","object":"text_completion","created":%(created)d,"model":%(model)s,"choices":[{"index":0,'
    '"text":"Simulated answer %(call)d.","logprobs":null,"finish_reason":"%(finish)s"}],"usage":%(usage)s}'
)
_RESPONSE = (
    '{"id":"resp_%(org)s_%(call)d","object":"response","created_at":%(created)d,"status":"%(status)s","error":null,'
    '"incomplete_details":null,"instructions":null,"metadata":{},"model":%(model)s,"output":%(output)s,'
    '"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"auto","tools":[],"top_p":1.0,"usage":%(usage)s}'
)
_OUTPUT = (
    '{"type":"message","id":"msg_%(call)d","status":"completed","role":"assistant","content":[{"type":"output_text",'
    '"text":"Simulated answer %(call)d.","annotations":[]}]}'
)
_REASONING = ',{"type":"reasoning","id":"rs_%d","summary":[],"encrypted_content":"%s"}'
_MESSAGE = (
    '{"id":"msg_%(call)d","type":"message","role":"assistant","model":%(model)s,"content":%(content)s,'
    '"stop_reason":%(stop)s,"stop_sequence":null,"usage":{"input_tokens":%(input)d,"cache_creation_input_tokens":0,'
    '"cache_read_input_tokens":0,"output_tokens":%(output)d}}'
)
_TEXT_BLOCK = '[{"type":"text","text":"Simulated answer %(call)d."}]'


def whole_answer(parsed: ParsedRequest, admitted: Admitted) -> bytes:
    """Return the answer as one JSON object."""
    facts = _facts(parsed, admitted)
    route = parsed.target.route
    if route == "messages":
        stop = '"max_tokens"' if facts["short"] else '"end_turn"'
        text = _MESSAGE % {**facts, "content": _TEXT_BLOCK % facts, "stop": stop}
    elif route == "generateContent":
        text = gemini_answers.whole_content(facts, _words(facts))
    elif route == "embeddings":
        text = embeddings(
            facts["call"],
            facts["model"],
            parsed.inputs,
            parsed.dimensions,
            facts["input"],
            in_base64=parsed.in_base64,
        )
    elif route == "responses":
        text = _response(facts, "completed", _outputs(facts), _responses_usage(facts))
    else:
        template = _CHAT if route == "chat/completions" else _COMPLETION
        text = template % {**facts, "usage": _chat_usage(facts)}
    return text.encode()


def streamed_answer(parsed: ParsedRequest, admitted: Admitted) -> list[bytes]:
    """Return the answer as pieces of a stream."""
    facts = _facts(parsed, admitted)
    place = parsed.target
    if place.route == "messages":
        return _message_events(facts)
    if place.route == "generateContent":
        pieces = gemini_answers.streamed_content(facts, _words(facts), as_list=place.as_list)
        return [piece.encode() for piece in pieces]
    if place.route == "responses":
        return _response_events(facts)
    return _chat_events(facts, chat=place.route == "chat/completions", usage=parsed.usage)


def _facts(parsed: ParsedRequest, admitted: Admitted) -> dict[str, Any]:
    used = admitted.usage
    short = parsed.max_output is not None and used.output_tokens >= parsed.max_output
    return {
        "call": admitted.call,
        "org": organisation_mark(admitted.quota),
        "reasoning": _REASONING % (admitted.call, encrypted_content(admitted.quota, admitted.call))
        if parsed.wants_encrypted
        else "",
        "created": int(admitted.facts.wall),
        "model": _quoted(parsed.model),
        "input": used.input_tokens,
        "output": used.output_tokens,
        "short": short,
        "finish": "length" if short else "stop",
    }


def _chat_usage(facts: dict[str, Any]) -> str:
    given, made = facts["input"], facts["output"]
    return f'{{"prompt_tokens":{given},"completion_tokens":{made},"total_tokens":{given + made}}}'


def _responses_usage(facts: dict[str, Any]) -> str:
    given, made = facts["input"], facts["output"]
    return (
        f'{{"input_tokens":{given},"input_tokens_details":{{"cached_tokens":0}},"output_tokens":{made},'
        f'"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{given + made}}}'
    )


def _response(facts: dict[str, Any], status: str, output: str, usage: str) -> str:
    return _RESPONSE % {**facts, "status": status, "output": output, "usage": usage}


def _outputs(facts: dict[str, Any]) -> str:
    return f"[{_OUTPUT % facts}{facts['reasoning']}]"


def _words(facts: dict[str, Any]) -> tuple[str, str, str]:
    return ("Simulated", " answer", f" {facts['call']}.")


def _chat_events(facts: dict[str, Any], *, chat: bool, usage: StreamUsage) -> list[bytes]:
    kind, prefix = ("chat.completion.chunk", "chatcmpl") if chat else ("text_completion", "cmpl")
    # A client that asked for usage gets "null" until the last event, which has no choices.
    none_yet = ',"usage":null' if usage == "apart" else ""
    used = f'"usage":{_chat_usage(facts)}'
    head = f'data: {{"id":"{prefix}-{facts["call"]}","object":"{kind}",'
    head += f'"created":{facts["created"]},"model":{facts["model"]},'

    def event(delta: str, finish: str = "null", usage_text: str = none_yet) -> str:
        choice = f'{{"index":0,{delta},"logprobs":null,"finish_reason":{finish}}}'
        return f'{head}"choices":[{choice}]{usage_text}}}\n\n'

    finish = f'"{facts["finish"]}"', f",{used}" if usage == "last" else none_yet

    if chat:
        start = event('"delta":{"role":"assistant","content":""}')
        pieces = [event(f'"delta":{{"content":"{word}"}}') for word in _words(facts)]
        end = event('"delta":{}', *finish)
    else:
        start = ""
        pieces = [event(f'"text":"{word}"') for word in _words(facts)]
        end = event('"text":""', *finish)
    end += f'{head}"choices":[],{used}}}\n\n' if usage == "apart" else ""
    return [(start + pieces[0]).encode(), *(each.encode() for each in pieces[1:]), f"{end}data: [DONE]\n\n".encode()]


def _message_events(facts: dict[str, Any]) -> list[bytes]:
    stop = "max_tokens" if facts["short"] else "end_turn"
    begun = _MESSAGE % {**facts, "content": "[]", "stop": "null", "output": 1}
    start = (
        _named("message_start", f'"message":{begun}')
        + _named("content_block_start", '"index":0,"content_block":{"type":"text","text":""}')
        + _named("ping")
    )
    pieces = [
        _named("content_block_delta", f'"index":0,"delta":{{"type":"text_delta","text":"{word}"}}')
        for word in _words(facts)
    ]
    usage = f'"usage":{{"output_tokens":{facts["output"]}}}'
    end = (
        _named("content_block_stop", '"index":0')
        + _named("message_delta", f'"delta":{{"stop_reason":"{stop}","stop_sequence":null}},{usage}')
        + _named("message_stop")
    )
    return [(start + pieces[0]).encode(), pieces[1].encode(), pieces[2].encode(), end.encode()]


def _response_events(facts: dict[str, Any]) -> list[bytes]:
    place = f'"item_id":"msg_{facts["call"]}","output_index":0,"content_index":0'
    text = "".join(_words(facts))
    part = f'{{"type":"output_text","text":"{text}","annotations":[]}}'
    begun = _OUTPUT % facts
    begun = begun[: begun.index('"status"')] + '"status":"in_progress","role":"assistant","content":[]}'
    created = _response(facts, "in_progress", "[]", "null")
    completed = _response(facts, "completed", _outputs(facts), _responses_usage(facts))
    reasoning = facts["reasoning"]
    encrypted = [("response.output_item.done", f'"output_index":1,"item":{reasoning[1:]}')] if reasoning else []
    deltas = [("response.output_text.delta", f'{place},"delta":"{word}","logprobs":[]') for word in _words(facts)]
    groups = [
        [
            ("response.created", f'"response":{created}'),
            ("response.in_progress", f'"response":{created}'),
            ("response.output_item.added", f'"output_index":0,"item":{begun}'),
            ("response.content_part.added", f'{place},"part":{{"type":"output_text","text":"","annotations":[]}}'),
            deltas[0],
        ],
        [deltas[1]],
        [deltas[2]],
        [
            ("response.output_text.done", f'{place},"text":"{text}","logprobs":[]'),
            ("response.content_part.done", f'{place},"part":{part}'),
            ("response.output_item.done", f'"output_index":0,"item":{_OUTPUT % facts}'),
            *encrypted,
            ("response.completed", f'"response":{completed}'),
        ],
    ]
    pieces, number = [], 0
    for group in groups:
        events = []
        for name, rest in group:
            events.append(_named(name, f'"sequence_number":{number},{rest}'))
            number += 1
        pieces.append("".join(events).encode())
    return pieces


def _named(name: str, rest: str = "") -> str:
    comma = "," if rest else ""
    return f'event: {name}\ndata: {{"type":"{name}"{comma}{rest}}}\n\n'
