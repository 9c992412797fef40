"""One strategy's step by the formulas, in plain floats: an oracle for the arrays. Only `math`, no NumPy.

Written from the formulas, not from the code under test: a strategy is a `Strategy`, not a row of codes, branches are
branches, and each collective is spelt out with ranks and nodes.
"""

import math

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp8_rowwise", "mxfp8", "fp4")
NARROW = ("fp8", "fp8_rowwise", "mxfp8", "fp4")
MOMENTS = {"adam": 8.0, "adam_8bit": 2.0, "sgd": 4.0}


class Wire:
    """Links of a machine under collective parameters: seconds a byte and a step, inside and between nodes."""

    def __init__(self, machine, parameters):
        self.machine, self.links = machine, parameters.collective
        self.step_s = machine.intra_latency_s * self.links.intra_latency_scale
        self.far_step_s = machine.inter_latency_s * self.links.inter_latency_scale

    def placed(self, size, stride):
        """How many ranks of an axis share a node, and over how many nodes it goes."""
        inside = min(max(math.floor(self.machine.node_size / stride), 1), size)
        return inside, size / inside

    def both(self, near, far):
        return max(near, far) + self.links.serial_share * min(near, far)

    def faster(self, payload, byte_s, steps_s, quick_steps_s, nodes):
        """The better of a protocol for long messages and one for short ones."""
        wire_s = payload * byte_s
        bulk = (
            wire_s + wire_s * self.links.fill_s / (wire_s + self.links.fill_s) + self.links.launch_s + steps_s
        )
        if nodes > 1 and not self.machine.keeps_order:
            return bulk
        quick = wire_s / self.links.quick_rate + self.links.launch_s + self.links.quick_step * quick_steps_s
        return min(bulk, quick)

    def far_byte_s(self, nodes, sharing=1.0):
        return sharing / (self.links.inter_fraction * self.machine.inter_byte_per_s) if nodes > 1 else 0.0

    def ring_byte_s(self, share, local, inside, nodes):
        rate = self.machine.intra_byte_per_s
        near = 0.0
        if inside > 1:
            near = share / (self.links.intra_fraction * rate) + local * self.links.local_share / rate
        return self.both(near, share / inside * self.far_byte_s(nodes))

    def all_gather(self, payload, size, stride):
        if size <= 1:
            return 0.0
        inside, nodes = self.placed(size, stride)
        byte_s = self.ring_byte_s((size - 1) / size, 0.5, inside, nodes)
        steps = (size - nodes) * self.step_s + (nodes - 1) * self.far_step_s
        return self.faster(payload, byte_s, steps, steps, nodes)

    def all_reduce(self, payload, size, stride):
        if size <= 1:
            return 0.0
        inside, nodes = self.placed(size, stride)
        rate = self.machine.intra_byte_per_s
        ring = self.ring_byte_s(2 * (size - 1) / size, 1.0, inside, nodes)
        near = 0.0
        if inside > 1:
            near = (2 / self.links.intra_fraction + self.links.local_share) / rate
            if self.machine.switch_reduces:
                near = min(near, (inside + 1) / inside / (self.links.switch_fraction * rate))
        tree = self.both(near, min(nodes - 1, 2) / inside * self.far_byte_s(nodes))
        ring_s = 2 * (size - nodes) * self.step_s + 2 * (nodes - 1) * self.far_step_s
        tree_s = 2 * (inside - 1) * self.step_s + 2 * math.ceil(math.log2(nodes)) * self.far_step_s
        return self.faster(payload, min(ring, tree), min(ring_s, 5 * tree_s), tree_s, nodes)

    def all_to_all(self, payload, size, crossing):
        inside, nodes = self.placed(size, 1)
        near = (inside - 1) / size / (self.links.intra_fraction * self.machine.intra_byte_per_s)
        far = (size - inside) / size * self.far_byte_s(nodes, crossing)
        steps = (inside - 1) * self.step_s + (nodes - 1) * self.far_step_s
        return self.faster(payload, self.both(near, far), steps, steps, nodes)

    def send(self, payload, size, stride):
        inside, nodes = self.placed(size, stride)
        if nodes > 1:
            return self.faster(payload, self.far_byte_s(nodes), self.far_step_s, self.far_step_s, nodes)
        near = 1 / (self.links.intra_fraction * self.machine.intra_byte_per_s) if inside > 1 else 0.0
        steps = self.step_s if inside > 1 else 0.0
        return self.faster(payload, near, steps, steps, nodes)


def hidden(traffic_s, beside_s, share):
    """What work beside it leaves of traffic."""
    if traffic_s <= beside_s:
        return share * traffic_s
    return traffic_s - beside_s * (1 - share)


class Step:
    """One strategy on one machine: its layer, its traffic, its memory."""

    def __init__(self, load, machine, strategy, parameters):
        self.load, self.machine, self.one, self.fitted = load, machine, strategy, parameters
        self.wire = Wire(machine, parameters)
        self.width = 4.0 if strategy.precision in {"fp32", "tf32"} else 2.0
        self.tokens = strategy.microbatch_samples * load.sequence / strategy.cp
        self.share = self.tokens / strategy.tp
        self.whole = self.share if strategy.sequence_parallel else self.tokens
        self.memory_s = 1 / (machine.memory_byte_per_s * parameters.memory_fraction)
        self.count = strategy.global_batch_samples // (strategy.dp * strategy.microbatch_samples)
        self.fused = strategy.fused_attention
        self.loss_fused = strategy.fused_loss and strategy.implementation != "eager"

    def rate(self, precision):
        peak = self.machine.peak_flop_per_s[PRECISIONS.index(precision)]
        fraction = self.machine.achievable_fraction * self.fitted.product_fraction
        return peak * fraction * self.machine.power_share**self.fitted.power_exponent

    def product_rate(self):
        slower = {
            "fp8": self.fitted.fp8_fraction, "fp8_rowwise": self.fitted.rowwise_fraction,
            "mxfp8": self.fitted.mxfp8_fraction, "fp4": self.fitted.fp4_fraction,
        }  # fmt: skip
        return self.rate(self.one.precision) * slower.get(self.one.precision, 1.0)

    def wide_rate(self):
        return self.rate(self.one.precision if self.one.precision in {"fp32", "tf32", "fp16"} else "bf16")

    def products_s(self):
        load, fitted = self.load, self.fitted
        moved = self.tokens * load.product_whole_bytes + self.share * load.product_shared_bytes
        moved += 2 * load.dense_params / self.one.tp
        return (
            self.share * load.dense_flop / self.product_rate()
            + load.num_dense_products * fitted.product_ramp_s
            + moved * self.memory_s * fitted.product_traffic * self.width / 2
        )

    def experts_s(self):
        load, fitted = self.load, self.fitted
        if not load.experts:
            return 0.0
        flop = self.share * load.expert_flop * fitted.expert_imbalance
        return (
            flop / (self.product_rate() * fitted.expert_fraction)
            + load.expert_params / self.one.ep * self.width * self.memory_s
            + load.num_expert_products * load.experts / self.one.ep * fitted.product_ramp_s
            + load.num_syncs * fitted.expert_sync_s
        )

    def attention_s(self):
        load, fitted = self.load, self.fitted
        rate = self.wide_rate() / fitted.product_fraction * fitted.attention_fraction
        if self.one.cp > 1:
            rate *= fitted.split_attention
        if self.fused:
            return self.share * load.attention_flop / rate, 0.0
        moved = load.score_bytes * self.width / 2 * fitted.score_traffic
        return self.share * (load.attention_flop + load.score_flop) / rate, self.share * moved * self.memory_s

    def traffic_s(self):
        load, fitted = self.load, self.fitted
        moved = (self.whole * load.whole_bytes + self.share * load.shared_bytes) * self.width / 2
        seconds = moved * self.memory_s * fitted.layer_traffic
        if self.one.implementation == "eager" and self.fused:
            seconds *= fitted.eager_traffic
        if self.one.precision in NARROW:
            seconds += self.share * load.quantised_bytes * fitted.quantise_traffic * self.memory_s
        return seconds

    def passes_s(self):
        """Forward, backward and recomputation of one layer and micro-batch."""
        products, traffic = self.products_s() + self.experts_s(), self.traffic_s()
        attention, scores = self.attention_s()
        forward = products + attention + scores + traffic
        back = 2.0 if self.one.trained == "full" else 1.0
        backward = back * products + (2.5 if self.fused else 2.0) * attention
        backward += 19 / 13 * scores + self.fitted.backward_traffic * traffic
        again = 0.0
        if self.one.recompute == "full":
            again = forward * self.fitted.recompute_share
        elif self.one.recompute == "selective":
            again = (
                self.share * self.load.again_flop / self.product_rate() + traffic
                if self.fused
                else attention + scores
            )
        return forward, backward, again

    def host_s(self):
        load, fitted, one = self.load, self.fitted, self.one
        launch = fitted.launch_s * (fitted.eager_launch if one.implementation == "eager" else 1.0)
        launch *= 1 + fitted.launch_jitter * math.sqrt(2 * math.log(one.tp * one.cp))
        of_experts = load.num_expert_kernels / one.ep * (1.0 if one.precision in NARROW else 0.5)
        again = fitted.recompute_share if one.recompute == "full" else 0.0
        launches = (load.num_kernels + of_experts) * (3 + again)
        if not self.fused and (load.heads / one.tp * one.microbatch_samples) % 4:
            launches += 6 * (2 + again)
        return launches * launch

    def tp_s(self, beside_s):
        one = self.one
        if one.tp == 1:
            return 0.0
        payload = self.tokens * self.load.hidden * self.width
        if one.sequence_parallel:
            once = 2 * self.wire.all_gather(payload, one.tp, 1)
        else:
            once = self.wire.all_reduce(payload, one.tp, 1)
        passes = 1 + self.fitted.tp_exposed
        if one.recompute == "full":
            passes += self.fitted.recompute_share
        if one.recompute == "selective" and self.fused and one.sequence_parallel:
            passes += 0.5
        traffic = self.load.num_sums * passes * once
        return hidden(traffic, beside_s, self.fitted.tp_overlap) if one.tp_overlap else traffic

    def cp_s(self, beside_s):
        one = self.one
        if one.cp == 1:
            return 0.0
        payload = one.microbatch_samples * self.load.sequence * self.load.kv_bytes
        payload /= min(one.tp, max(self.load.kv_heads, 1))
        passes = 4 if one.recompute == "full" else 3
        return hidden(
            passes * self.wire.all_gather(payload, one.cp, one.tp), beside_s, self.fitted.cp_overlap
        )

    def ep_s(self, beside_s):
        one = self.one
        if one.ep == 1:
            return 0.0
        copies = min(self.load.top_k, one.ep)
        _, nodes = self.wire.placed(one.ep, 1)
        crossing = min(self.load.top_k, nodes) / max(copies, 1)
        payload = self.share * self.load.routed_bytes * copies
        once = self.wire.all_to_all(payload, one.ep, crossing)
        passes = 3 if one.recompute == "full" else 2
        return hidden(2 * passes * once, beside_s, self.fitted.ep_overlap)

    def shard_s(self, beside_s):
        """What gathering a layer's weights and scattering its gradients leaves bare."""
        one, load = self.one, self.load
        if one.zero_stage < 3:
            return 0.0
        traffic = 3 * self.wire.all_gather(load.dense_params / one.tp * self.width, one.dp * one.cp, one.tp)
        if load.expert_params:
            ranks = one.dp * one.cp * one.tp / one.ep
            traffic += 3 * self.wire.all_gather(load.expert_params / one.ep * self.width, ranks, one.ep)
        if not self.fused:
            ranks = one.dp * one.cp
            singly = 11 * self.wire.all_gather(0.0, ranks, one.tp) + 12 * ranks * self.fitted.shard_copy_s
            singly += 2 * load.dense_params / one.tp * self.width * self.memory_s
            return (traffic + 3 * singly) * (4 / 3 if one.recompute == "full" else 1)
        return hidden(traffic, beside_s, self.fitted.shard_overlap)

    def held(self):
        """Weights of the fullest stage on one rank: dense, experts, and those of each that are trained."""
        one, load = self.one, self.load
        layers = load.layers / one.pp
        dense = (
            layers * load.dense_params + (load.end_params if one.pp > 1 else load.embedding_params)
        ) / one.tp
        experts = layers * load.expert_params / one.ep
        if one.trained == "full":
            return dense, experts, dense, experts
        return dense, experts, layers * one.lora_rank * load.adapter_params / one.tp, 0.0

    def gradients_s(self):
        one = self.one
        if one.zero_stage == 3:
            return 0.0
        _, _, dense, experts = self.held()
        width = self.width * self.travelling()
        seconds = self.wire.all_reduce(dense * width, one.dp * one.cp, one.tp)
        if experts:
            seconds += self.wire.all_reduce(experts * width, one.dp * one.cp * one.tp / one.ep, one.ep)
        return seconds / one.sync_period

    def travelling(self):
        """The share of gradient bytes that compression leaves."""
        one = self.one
        if one.compression == "fp16":
            return min(1.0, 2 / self.width)
        if one.compression == "powersgd":
            return min(1.0, 2 * one.compression_rank / math.sqrt(max(self.load.dense_params, 1)))
        if one.compression == "topk":
            return min(1.0, (1 + 4 / self.width) / max(one.compression_rank, 1))
        return 1.0

    def send_s(self):
        one = self.one
        if one.pp == 1:
            return 0.0
        payload = self.tokens * self.load.boundary_bytes * self.width / 2
        once = self.wire.send(payload / one.tp, one.pp, one.tp * one.cp * one.dp)
        if not one.sequence_parallel:
            once += self.wire.all_gather(payload, one.tp, 1)
        return 2 * one.interleave * once * self.fitted.pp_overlap

    def head_s(self):
        load, fitted = self.load, self.fitted
        moved = load.fused_loss_bytes if self.loss_fused else load.loss_bytes
        columns = load.vocabulary // self.one.tp
        halvings = next((lost for lost in range(3) if columns % (8 >> lost) == 0), 3)
        rate = self.wide_rate() * fitted.head_fraction * fitted.unaligned_fraction**halvings
        device = self.share * (3 * load.head_flop / rate + moved * self.memory_s * fitted.head_traffic)
        host = fitted.head_kernels * fitted.launch_s if load.vocabulary else 0.0
        return math.hypot(device, host * (fitted.eager_launch if self.one.implementation == "eager" else 1.0))

    def state_bytes(self):
        return MOMENTS[self.one.optimizer] + (4.0 if self.width < 4 else 0.0)

    def optimizer_s(self):
        one = self.one
        dense_held, experts_held, dense, experts = self.held()
        if one.zero_stage:
            dense /= one.dp * one.cp
            experts /= one.dp * one.cp * one.tp / one.ep
        states = (dense + experts) * self.state_bytes()
        if one.offload == "none":
            return 2 * states * self.fitted.optimizer_traffic * self.memory_s
        seconds = 2 * states / self.machine.host_byte_per_s
        if one.offload == "optimizer_and_params":
            seconds += 2 * self.count * (dense_held + experts_held) * 2 / self.machine.host_byte_per_s
        return seconds

    def seconds(self):
        """Seconds of a step by cause."""
        one, load, fitted = self.one, self.load, self.fitted
        forward, backward, again = self.passes_s()
        cp = self.cp_s(forward + backward)
        ep = self.ep_s(forward + backward + cp)
        compute = forward + backward + again
        unsummed = math.hypot(compute + cp + ep, self.host_s())
        tp = self.tp_s(unsummed)
        busy = compute + tp + cp + ep
        layer = unsummed + tp
        back = 2 / 3 if one.trained == "full" else 1 / 2
        shard, head, send = self.shard_s(layer), self.head_s(), self.send_s()
        chunks = math.ceil(load.layers / (one.pp * one.interleave))
        fullest = chunks * one.interleave
        last = load.layers - (one.pp - 1) * fullest
        stage = fullest * (layer + shard) + send
        pace = max(stage, (last if last > 0 else fullest) * (layer + shard) + send + head)
        mean = load.layers / one.pp
        own = mean * (layer + shard) + send + head / one.pp
        found = {
            "compute": self.count * (mean * compute + head / one.pp),
            "host": self.count * mean * (layer - busy),
            "tp": self.count * mean * tp,
            "cp": self.count * mean * cp,
            "ep": self.count * mean * ep,
            "pp": self.count * send,
            "dp": self.count * mean * shard
            + hidden(self.gradients_s(), mean * layer * back, fitted.dp_overlap),
            "idle": self.count * (pace - own) + (one.pp - 1) / one.interleave * stage,
            "optimizer": self.optimizer_s(),
            "other": fitted.step_s,
        }
        size = one.dp * one.tp * one.pp * one.cp
        return found | {"waiting": sum(found.values()) * fitted.rank_jitter * math.sqrt(2 * math.log(size))}

    def kept(self):
        """Bytes a layer keeps of a micro-batch: with nothing recomputed, and as it is."""
        one, load = self.one, self.load
        wider = self.width / 2
        plain = wider * (self.whole * load.kept_whole_bytes + self.share * load.kept_shared_bytes)
        selective = plain
        if self.fused:
            unread = load.boundary_bytes if one.implementation == "eager" else 0.0
            spared = self.whole * (load.spared_whole_bytes + unread) + self.share * load.spared_shared_bytes
            selective = min(plain, wider * spared)
        everything = plain + (0.0 if self.fused else self.share * load.kept_score_bytes)
        chosen = {
            "none": everything,
            "selective": selective,
            "full": min(wider * self.whole * load.boundary_bytes, selective),
        }
        return everything, chosen[one.recompute]

    def activations(self):
        one, load = self.one, self.load
        everything, chosen = self.kept()
        loss = self.share * (load.kept_fused_loss_bytes if self.loss_fused else load.kept_loss_bytes)
        alive = min(self.count, one.pp)
        if one.interleave > 1:
            alive *= 1 + (one.pp - 1) / (one.pp * one.interleave)
        layers, at_work = load.layers / one.pp * chosen, everything - chosen
        found = max(layers * alive + at_work, layers + max(loss, at_work))
        if one.tp > 1 and one.sequence_parallel:
            found += 2 * self.tokens * load.boundary_bytes
        return found

    def buffers(self):
        one, load = self.one, self.load
        found = 2 * self.tokens * load.boundary_bytes if one.pp > 1 else 0.0
        if (one.zero_stage == 3 and one.dp * one.cp > 1) or one.offload == "optimizer_and_params":
            out = self.width + 4 if one.trained == "full" else 0.0
            layer = load.dense_params / one.tp + load.expert_params / one.ep
            tables = (load.end_params if one.pp > 1 else load.embedding_params) / one.tp
            found += layer * (2 * self.width + out) + tables * (self.width + out / 2)
        return found

    def memory(self):
        """Bytes of the fullest rank by kind."""
        one, fitted = self.one, self.fitted
        ranks = one.dp * one.cp
        held = list(zip(self.held()[:2], self.held()[2:], (ranks, ranks * one.tp / one.ep), strict=True))

        def sharded(stage, which):
            return sum(each[which] / (each[2] if one.zero_stage >= stage else 1) for each in held)

        frozen = (4 + 0.127) / 8 if one.trained == "qlora" else self.width
        weights = 0.0 if one.offload == "optimizer_and_params" else frozen * sharded(3, 0)
        if one.trained != "full":
            weights += self.width * held[0][1]
        resting = self.width if one.precision == "fp16" or one.zero_stage == 3 else 4.0
        found = {
            "weights": weights,
            "gradients": resting * sharded(2, 1),
            "optimizer": self.state_bytes() * sharded(1, 1) if one.offload == "none" else 0.0,
            "activations": self.activations() * fitted.activation_slack,
            "buffers": self.buffers(),
        }
        return found | {"reserved": sum(found.values()) * fitted.reserved_slack, "fixed": fitted.fixed_bytes}
