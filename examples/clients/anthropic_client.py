"""Anthropic's own client at a gateway: ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY lead there. Argument: the target."""

import sys

import anthropic

question = {"role": "user", "content": "What is the capital of France?"}

with anthropic.Anthropic() as client:
    answer = client.messages.create(model=sys.argv[1], max_tokens=1024, messages=[question])
    print("whole:", answer.content[0].text)

    with client.messages.stream(model=sys.argv[1], max_tokens=1024, messages=[question]) as stream:
        print("pieces:", *stream.text_stream, sep="")
