"""OpenAI's own client at a gateway: OPENAI_BASE_URL and OPENAI_API_KEY lead there. Argument: the target's name."""

import sys

import openai

question = {"role": "user", "content": "What is the capital of France?"}

with openai.OpenAI() as client:
    answer = client.chat.completions.create(model=sys.argv[1], messages=[question])
    print("whole:", answer.choices[0].message.content)

    stream = client.chat.completions.create(model=sys.argv[1], messages=[question], stream=True)
    print("pieces:", *(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices), sep="")
