#include "model/decoder.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "model/products.h"

namespace specqd {

Decoder::Decoder(DecoderSpec spec, const DecoderWeights& weights, std::shared_ptr<Pool> pool,
                 const Kernels& kernels, int64_t max_rows)
    : traits_(std::move(spec), kernels),
      pool_(std::move(pool)),
      ropes_(traits_.spec.ropes.begin(), traits_.spec.ropes.end()),
      cache_plan_(traits_.spec, weights.layers),
      head_(weights, traits_),
      taps_(std::ssize(weights.layers), traits_.spec.hidden, max_rows),
      batch_(traits_, cache_plan_.kinds, cache_plan_.strip_heads, pool_->threads(), max_rows) {
  if (weights.entry != nullptr) {
    auto pairs = std::make_unique<PairEntry>(weights, batch_);
    pairs_ = pairs.get();
    entries_.push_back(std::move(pairs));
  } else {
    entries_.push_back(make_embedding(weights));
  }
  if (weights.per_layer.exists())
    entries_.push_back(make_per_layer_embedding(weights.per_layer, batch_));
  const BlockSetting setting{traits_, ropes_, max_rows};
  const bool reads_pairs = pairs_ != nullptr && !pairs_->is_projected();
  const int64_t count = std::ssize(weights.layers);
  for (int64_t i = 0; i < count; ++i) {
    layers_.emplace_back(weights.layers[static_cast<size_t>(i)], i, cache_plan_, reads_pairs,
                         setting);
  }
  if (weights.context != nullptr) {
    context_ = make_context_entry(weights.context);
    context_width_ = weights.context->fc->columns();
  }
  if (weights.selector != nullptr)
    selector_ = std::make_unique<CandidateSelector>(weights.selector, weights.final_norm,
                                                    traits_.spec.vocabulary, max_rows);
  reserve();
}

std::vector<std::vector<BlockMatrix>> Decoder::matrices() const {
  std::vector<std::vector<BlockMatrix>> all;
  const auto add_to = [](std::vector<BlockMatrix>& group, const Block& block) {
    std::ranges::move(block.matrices(), std::back_inserter(group));
  };
  for (const Layer& layer : layers_) {
    all.emplace_back();
    for (const Block* block : layer.blocks()) add_to(all.back(), *block);
  }
  all.emplace_back();
  for (const auto& entry : entries_) add_to(all.back(), *entry);
  all.back().push_back(head_.matrix());
  if (selector_ != nullptr) all.back().push_back(selector_->matrix());
  return all;
}

// Reserves the memory that blocks share: as much scratch as the largest needs, and rows of inputs.
void Decoder::reserve() {
  const Kernels& kernels = traits_.kernels;
  int64_t most_tiles = 0;
  size_t prepared = 0, scratch = 0;
  auto groups = matrices();
  for (const auto& group : groups)
    for (const Precision precision : {Precision::kExact, Precision::kFp4})
      fixed_bytes_[static_cast<size_t>(precision)] += fixed_bytes(group, precision);
  if (context_ != nullptr) groups.push_back(context_->matrices());
  for (const auto& group : groups) {
    for (const BlockMatrix& each : group) {
      const int64_t tiles = each.weight->matrix().tiles;
      const size_t row = std::max(kernels.exact_row_bytes(tiles), kernels.draft_row_bytes(tiles));
      most_tiles = std::max(most_tiles, tiles);
      prepared =
          std::max(prepared, static_cast<size_t>(batch_.max_rows * each.inputs_per_row) * row);
    }
  }
  for (const Layer& layer : layers_)
    for (const Block* block : layer.blocks()) scratch = std::max(scratch, block->scratch_bytes());
  batch_.scratch = Memory(scratch);
  batch_.prepared = Memory(prepared);
  const auto rows = static_cast<size_t>(batch_.max_rows);
  for (ThreadScratch& each : batch_.threads) {
    const size_t row =
        std::max(kernels.exact_row_bytes(most_tiles), kernels.draft_row_bytes(most_tiles));
    each.row = Memory(static_cast<size_t>(most_tiles * kBlock) * sizeof(float));
    each.product = Memory(rows * kProductPanels * kPanel * sizeof(float));
    each.prepared = Memory(kRowsPreparedByEach * row);
  }
}

size_t Decoder::weight_bytes(Precision precision) const {
  size_t bytes = 0;
  for (const auto& group : matrices()) bytes += bytes_of_row(group, precision);
  return bytes;
}

size_t Decoder::seen_cache_bytes() const {
  int64_t words = 0;
  for (int64_t i = 0; i < std::ssize(layers_); ++i)
    words += layers_[static_cast<size_t>(i)].cache_words(
        i < cache_plan_.first_reader ? batch_.all_sequences : batch_.sequences);
  return static_cast<size_t>(words) * sizeof(uint16_t) + static_cast<size_t>(batch_.states.bytes());
}

size_t Decoder::skipped_cache_bytes() const {
  int64_t words = 0;
  for (const SequenceRows& rows : batch_.all_sequences)
    if (rows.choice != nullptr)
      for (int64_t strip = 0; strip < strips(); ++strip)
        words += rows.choice->skipped_pages(strip) * kPagePositions *
                 cache_plan_.strip_words[static_cast<size_t>(strip)];
  return static_cast<size_t>(words) * sizeof(uint16_t);
}

bool Decoder::has_pages(const KvCache& cache, const ForwardRows& rows) const {
  const int64_t window = cache_plan_.longest_window;
  const int64_t seen = window > 0 ? std::max<int64_t>(rows.start + 1 - window, 0) : 0;
  for (int64_t page = seen / kPagePositions; page * kPagePositions < rows.start + rows.count;
       ++page)
    if (!cache.has_page(rows.sequence, page)) return false;
  return true;
}

void Decoder::begin(const ForwardRequest& request) {
  batch_.begin(request);
  for (const ForwardRows& part : request.sequences)
    for (RopeTable& rope : ropes_) rope.reach(part.start + part.count);
}

void Decoder::absorb(const ForwardRequest& request) {
  begin(request);
  batch_.moved_bytes = 0;  // the blocks add what they read
  pool_->run([&](Team& team) {
    context_->run(team, batch_, normed(batch_, {}), Destination::kResidual);
    for (const Layer& layer : layers_) layer.write_cache(team, batch_);
  });
}

void Decoder::forward(const ForwardRequest& request) {
  begin(request);
  batch_.moved_bytes = fixed_bytes_[static_cast<size_t>(request.precision)];
  head_.plan(batch_, request.head, request.sequences);

  // After the last layer with keys, values or states of its own, no other row reads the results of
  // rows without logits, so these rows are dropped.
  const int64_t layers = std::ssize(layers_);
  const int64_t kept = batch_.logit_row_count();
  const bool needs_all = kept == rows() || !taps_.boundaries().empty();
  const int64_t of_all_rows = needs_all ? layers : cache_plan_.first_reader;
  pool_->run([&](Team& team) {
    if (batch_.bits != nullptr) batch_.bits->enter_layer(team, BitRecord::kBeforeLayers);
    for (const auto& entry : entries_)
      entry->run(team, batch_, normed(batch_, {}), Destination::kResidual);
    record(team, batch_, "residual stream", batch_.residual.data(), spec().hidden, spec().hidden);
    run_layers(team, 0, of_all_rows);
  });
  batch_.cache->states().finish();  // no recurrent layer reads the states of an earlier one
  if (of_all_rows == layers || kept == 0) return;
  batch_.keep_rows_with_logits();
  pool_->run([&](Team& team) { run_layers(team, of_all_rows, layers); });
}

void Decoder::run_layers(Team& team, int64_t first, int64_t last) {
  const auto enter = [&](int64_t boundary) {
    if (batch_.bits != nullptr) batch_.bits->enter_layer(team, boundary);
    taps_.copy(team, batch_, boundary);
  };
  for (int64_t i = first; i < last; ++i) {
    enter(i);
    layers_[static_cast<size_t>(i)].run(team, batch_);
  }
  if (last < std::ssize(layers_)) return;
  enter(last);
  head_.run(team, batch_);
  if (selector_ != nullptr) selector_->run(team, batch_);
}

void Decoder::watch_inputs() {
  std::vector<const PackedWeight*> watched;
  int64_t inputs_per_row = 1;
  for (const auto& group : matrices())
    for (const BlockMatrix& each : group) {
      if (each.inputs.empty()) continue;
      watched.push_back(each.weight);
      inputs_per_row = std::max(inputs_per_row, each.inputs_per_row);
    }
  batch_.watched = std::make_unique<InputProducts>(watched, batch_.max_rows * inputs_per_row);
}

std::vector<std::map<std::string, std::vector<float>>> Decoder::take_input_products() {
  if (batch_.watched == nullptr) throw std::logic_error("call watch_inputs() first");
  std::vector<std::vector<float>> sums = std::exchange(batch_.watched, nullptr)->take();
  std::vector<std::map<std::string, std::vector<float>>> by_name;
  auto next = sums.begin();
  for (const auto& group : matrices()) {
    by_name.emplace_back();
    for (const BlockMatrix& each : group)
      if (!each.inputs.empty()) by_name.back().emplace(each.inputs, std::move(*next++));
  }
  return by_name;
}

std::vector<BitRecord::Stage> Decoder::take_bits() {
  if (batch_.bits == nullptr) throw std::logic_error("call record_bits() first");
  return std::exchange(batch_.bits, nullptr)->take();
}

}  // namespace specqd
