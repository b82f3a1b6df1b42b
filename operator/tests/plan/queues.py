"""Two small simulations that share nothing with the planner: one queue for c servers, and steps of a shared batch."""

import random
from heapq import heapreplace
from math import log, sqrt


def gaps(rng, rate, cv2):
    """Gaps between arrivals: gamma with this squared coefficient of variation (1: exponential)."""
    while True:
        yield rng.gammavariate(1 / cv2, cv2 / rate)


def lengths(rng, cv2):
    """Multiples of the mean length: fixed, or lognormal."""
    sigma = sqrt(log(1 + cv2))
    while True:
        yield rng.lognormvariate(-sigma * sigma / 2, sigma) if cv2 else 1.0


def response_times(servers, rho, arrival_cv2, length_cv2, count=30_000, seed=1):
    """Wait and service of GI/G/c, first come first served, with a mean service of 1 second; the start left out."""
    rng = random.Random(seed)
    free = [0.0] * servers
    now, responses = 0.0, []
    arrivals, services = gaps(rng, rho * servers, arrival_cv2), lengths(rng, length_cv2)
    for _ in range(count):
        now += next(arrivals)
        end = max(now, free[0]) + next(services)
        heapreplace(free, end)
        responses.append(end - now)
    return responses[count // 20 :]


def step_times(workers, rate, tokens, alone, slope, arrival_cv2, count=6000, seed=1):
    """Mean step of every request of `tokens` steps on workers whose step takes alone + slope·(others).

    Arrivals go to the worker with the fewest requests and join it at its next step.
    """
    rng = random.Random(seed)
    arrivals = gaps(rng, rate, arrival_cv2)
    batches, ends = [[] for _ in range(workers)], [0.0] * workers
    queues = [[] for _ in range(workers)]
    due, done = next(arrivals), []
    while len(done) < count:
        busy = [w for w in range(workers) if batches[w] or queues[w]]
        w = min(busy, key=ends.__getitem__, default=None)
        if w is None or due <= ends[w]:
            to = min(range(workers), key=lambda v: (len(batches[v]) + len(queues[v]), v))
            queues[to].append(due)
            if not batches[to]:
                ends[to] = max(ends[to], due)
            due += next(arrivals)
            continue
        step_ended(w, batches, queues, ends, tokens, alone, slope, done)
    return done[count // 20 :]


def step_ended(w, batches, queues, ends, tokens, alone, slope, done):
    """One step of a worker is over: its requests have a token more, those that are full leave, those that wait join."""
    now = ends[w]
    stay = []
    for request in batches[w]:
        request[1] += 1
        if request[1] == tokens:
            done.append((now - request[0]) / tokens)
        else:
            stay.append(request)
    batches[w] = stay + [[now, 0] for _ in queues[w]]
    queues[w] = []
    ends[w] = now + alone + slope * max(len(batches[w]) - 1, 0) if batches[w] else now


def quantile(values, share):
    """Nearest rank."""
    return sorted(values)[int(share * len(values))]
