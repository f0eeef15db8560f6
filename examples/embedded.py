"""The engine inside this process, without HTTP: chat, streaming and many prompts at once."""

from penstock import LLM
from penstock.dialog import Sampling, TextDelta

greedy = Sampling(temperature=0.0)
with LLM("smollm2-135m-instruct", max_num_seqs=8) as llm:
    question = [{"role": "user", "content": "Name three colours."}]
    answer = llm.chat(question, sampling=greedy, max_tokens=32)
    print(answer.choices[0].parts[0].text)

    for event in llm.stream(question, max_tokens=32):
        if isinstance(event, TextDelta):
            print(event.text, end="", flush=True)
    print()

    prompts = ["The capital of France is", "Water boils at", "2 + 2 ="]
    answers = llm.generate(prompts, sampling=greedy, max_tokens=8)
    for prompt, done in zip(prompts, answers, strict=True):
        print(prompt, "->", done.choices[0].parts[0].text)
