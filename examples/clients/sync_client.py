import quintain

with quintain.sync.connect() as target:
    result = target.invoke("What is the capital of France?")
    print(result.raw_text, result.call_count, "of", result.max_calls)
