"""The `openai` package, unmodified, against a running server: arguments are its base URL and the model's name."""

import sys

import openai

base, model = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=f"{base}/v1", api_key=sys.argv[3] if len(sys.argv) > 3 else "none", max_retries=0)
say = [{"role": "user", "content": "Name a colour."}]


def check(what, holds):
    print(f"{'ok  ' if holds else 'FAIL'} {what}")
    if not holds:
        sys.exit(1)


def refused(kind, call, **how):
    """The error that a call must end with."""
    try:
        call(model=how.pop("model", model), **how)
    except kind as error:
        return error
    check(f"{kind.__name__} was expected", False)


check("models", model in [m.id for m in client.models.list()] and client.models.retrieve(model).id == model)

text = client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0)
choice = text.choices[0]
check("completion", choice.finish_reason in ("length", "stop") and 1 <= text.usage.completion_tokens <= 8)
again = client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0)
check("greedy is the same again", again.choices[0].text == choice.text)
several = client.completions.create(model=model, prompt=["Once", "Twice"], n=2, max_tokens=4, seed=7)
check("two prompts, two answers each", [c.index for c in several.choices] == [0, 1, 2, 3])
repeat = client.completions.create(model=model, prompt=["Once", "Twice"], n=2, max_tokens=4, seed=7)
check("a seed repeats", [c.text for c in several.choices] == [c.text for c in repeat.choices])
scored = client.completions.create(model=model, prompt="Once upon", max_tokens=2, logprobs=3, temperature=0)
lists = scored.choices[0].logprobs
check("logprobs of the answer", len(lists.tokens) == len(lists.token_logprobs) >= 1)
check("they are logarithms", all(p <= 0 for p in lists.token_logprobs))
echoed = client.completions.create(model=model, prompt="Once upon", max_tokens=2, echo=True, temperature=0)
check("echo", echoed.choices[0].text == "Once upon" + scored.choices[0].text)

pieces = list(client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0, stream=True))
check("a stream has the same text", "".join(p.choices[0].text for p in pieces) == choice.text)

chat = client.chat.completions.create(model=model, messages=say, max_tokens=8, temperature=0)
message = chat.choices[0].message
check("chat", message.role == "assistant" and chat.usage.total_tokens > chat.usage.completion_tokens > 0)
check("cached tokens are told", chat.usage.prompt_tokens_details.cached_tokens >= 0)
events = list(
    client.chat.completions.create(
        model=model, messages=say, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
)
check("the role comes first", events[0].choices[0].delta.role == "assistant")
streamed = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
check("a chat stream has the same text", streamed == message.content)
check("usage at the end", events[-1].choices == [] and events[-1].usage.completion_tokens == chat.usage.completion_tokens)
scored = client.chat.completions.create(model=model, messages=say, max_tokens=2, logprobs=True, top_logprobs=2, temperature=0)
first = scored.choices[0].logprobs.content[0]
check("chat logprobs", first.logprob <= 0 and len(first.top_logprobs) == 2 and bytes(first.bytes) is not None)
if len(streamed) > 3:
    stop = streamed[2]
    cut = client.chat.completions.create(model=model, messages=say, max_tokens=8, temperature=0, stop=stop)
    check("a stop string", cut.choices[0].finish_reason == "stop" and stop not in cut.choices[0].message.content)
early = client.chat.completions.create(model=model, messages=say, max_tokens=64, stream=True)
next(iter(early))
early.close()
check("a stream that is left", client.models.list().data[0].id == model)

error = refused(openai.BadRequestError, client.chat.completions.create, messages=say, temperature=9)
check("400 names the parameter", error.param == "temperature" and error.code == "invalid_value")
error = refused(openai.NotFoundError, client.chat.completions.create, model="other", messages=say)
check("404 for another model", error.code == "model_not_found")
error = refused(openai.APIStatusError, client.completions.create, prompt="a " * 2_000_000)
check("413 for a long prompt", error.status_code == 413 and error.code == "context_length_exceeded")
error = refused(openai.APIStatusError, client.completions.create, prompt="a" * 10_000_000)
check("413 for a large body", error.status_code == 413 and error.code == "request_too_large")
