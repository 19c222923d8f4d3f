#include "vector_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "half.h"
#include "plan.h"

namespace rigl {
namespace {

// Fewer weights are in the L2 cache: widening narrow ones, and a second pass over rows, take longer than they save.
constexpr std::size_t kMinStreamed = 1 << 17;
// Beyond, if fewer rows of a slice have another non-zero in a window, slices with scalar loads take these non-zeros.
constexpr std::size_t kMinSharing = 5;
constexpr int kWideningLanes = 8;  // kernels of fewer lanes have no instructions to widen weights with

bool streams(const SparseMatrix& matrix, std::uint32_t groups) {
  return matrix.values.size() / std::max(groups, 1u) >= kMinStreamed;
}

// How weights are stored: as narrow as they are given, where reading them takes longer than widening them.
ValueKind kind_for(const SparseMatrix& matrix, const KernelTable& kernels, std::uint32_t groups) {
  return streams(matrix, groups) && kernels.lanes >= kWideningLanes ? matrix.kind : ValueKind::kFloat32;
}

template <class Number>
void append(std::vector<unsigned char>* bytes, Number number) {
  const std::size_t end = bytes->size();
  bytes->resize(end + sizeof number);
  std::memcpy(bytes->data() + end, &number, sizeof number);
}

float scale_of(const SparseMatrix& matrix, std::uint32_t row) {
  return matrix.scales.empty() || row >= matrix.rows ? 1.0f : matrix.scales[row];
}

// The non-zeros `first`..`last` of a row, whose column k is stored as `col_idx[k]`.
struct RowPart {
  std::uint32_t row;
  std::size_t first, last;

  std::size_t size() const { return last - first; }
};

// Store rows as slices; `padding` is the index of a zero.
template <class Column>
void add_slices(const SparseMatrix& matrix, std::vector<RowPart> parts, std::size_t lanes, std::uint32_t padding,
                const Column& column, SliceGroup* group) {
  // Rows of similar length share a slice, which then needs little padding.
  std::stable_sort(parts.begin(), parts.end(), [](const RowPart& a, const RowPart& b) { return a.size() > b.size(); });
  for (std::size_t s = 0; s < parts.size(); s += lanes) {
    const std::size_t longest = parts[s].size();
    group->lengths.push_back(static_cast<std::uint32_t>(longest));
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      group->rows.push_back(s + lane < parts.size() ? parts[s + lane].row : matrix.rows);
    }
    for (std::size_t n = 0; n < longest; ++n) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const bool present = s + lane < parts.size() && n < parts[s + lane].size();
        const std::size_t k = present ? parts[s + lane].first + n : 0;
        group->col_idx.push_back(static_cast<std::uint16_t>(present ? column(k) : padding));
        group->values.add(present ? matrix.values[k] : 0.0f, present ? scale_of(matrix, parts[s + lane].row) : 1.0f);
      }
    }
  }
  group->values.fit();
  group->col_idx.shrink_to_fit();
}

SliceGroup make_slices(const SparseMatrix& matrix, std::uint32_t begin, std::uint32_t end, std::uint32_t first_column,
                       std::uint32_t width, std::size_t lanes, ValueKind kind) {
  SliceGroup group;
  group.begin = begin;
  group.end = end;
  group.first_column = first_column;
  group.values.kind = kind;
  std::vector<RowPart> parts;  // the non-zeros of each row in these columns
  for (std::uint32_t row = begin; row < end; ++row) {
    const auto from = matrix.col_idx.begin() + static_cast<std::ptrdiff_t>(matrix.row_ptr[row]);
    const auto to = matrix.col_idx.begin() + static_cast<std::ptrdiff_t>(matrix.row_ptr[row + 1]);
    const auto low = std::lower_bound(from, to, first_column), high = std::lower_bound(low, to, first_column + width);
    parts.push_back({row, static_cast<std::size_t>(low - matrix.col_idx.begin()),
                     static_cast<std::size_t>(high - matrix.col_idx.begin())});
  }
  add_slices(
      matrix, std::move(parts), lanes, width, [&](std::size_t k) { return matrix.col_idx[k] - first_column; }, &group);
  return group;
}

// How many non-zeros of a window are stored with it: as many as enough rows have.
std::size_t shared_count(const std::vector<RowPart>& parts, std::size_t enough) {
  std::size_t count = 0;
  const auto sharing = [&] {
    return std::count_if(parts.begin(), parts.end(), [&](const RowPart& part) { return part.size() > count; });
  };
  while (static_cast<std::size_t>(sharing()) >= enough) ++count;
  return count;
}

// The non-zeros of a slice of rows in one window.
struct WindowPart {
  WindowEntry entry;
  std::vector<RowPart> rows;
};

// Split the non-zeros of a slice into windows. Those that too few rows share go to `rest`, which has the places of
// non-zeros by row.
std::vector<WindowPart> split_slice(const SparseMatrix& matrix, std::vector<RowPart> rows, std::size_t enough,
                                    std::vector<std::vector<std::size_t>>* rest) {
  std::vector<WindowPart> parts;
  for (std::uint64_t from = 0; from < matrix.columns; from += kWindowColumns) {
    WindowPart part{{static_cast<std::uint16_t>(from / kWindowColumns), 0}, rows};
    for (std::size_t lane = 0; lane < rows.size(); ++lane) {
      std::size_t& k = rows[lane].first;
      while (k < rows[lane].last && matrix.col_idx[k] < from + kWindowColumns) ++k;
      part.rows[lane].last = k;
    }
    const std::size_t count = shared_count(part.rows, enough);
    for (RowPart& row : part.rows) {
      const std::size_t kept = std::min(row.first + count, row.last);
      for (std::size_t k = kept; k < row.last; ++k) (*rest)[row.row].push_back(k);
      row.last = kept;
    }
    part.entry.count = static_cast<std::uint16_t>(count);
    if (count > 0) parts.push_back(std::move(part));
  }
  return parts;
}

// Store the windows of a slice, those with few non-zeros first: the end of a window is then predicted.
void add_windows(const SparseMatrix& matrix, std::vector<WindowPart> parts, std::size_t lanes, WindowGroup* group) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const WindowPart& a, const WindowPart& b) { return a.entry.count < b.entry.count; });
  group->entry_counts.push_back(static_cast<std::uint32_t>(parts.size()));
  for (const WindowPart& part : parts) {
    group->entries.push_back(part.entry);
    for (std::size_t n = 0; n < part.entry.count; ++n) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const bool present = lane < part.rows.size() && n < part.rows[lane].size();
        const std::size_t k = present ? part.rows[lane].first + n : 0;
        const std::uint32_t position = present ? matrix.col_idx[k] % kWindowColumns : kWindowColumns;
        group->positions.push_back(static_cast<std::uint8_t>(position));
        group->values.add(present ? matrix.values[k] : 0.0f, present ? scale_of(matrix, part.rows[lane].row) : 1.0f);
      }
    }
  }
}

// What the windows leave over, as a matrix of slices.
void add_rest(const SparseMatrix& matrix, const std::vector<std::vector<std::size_t>>& rest, std::size_t lanes,
              std::uint32_t padding, SliceGroup* group) {
  std::vector<std::size_t> places;
  std::vector<RowPart> parts;
  for (std::uint32_t row = group->begin; row < group->end; ++row) {
    const std::size_t first = places.size();
    places.insert(places.end(), rest[row].begin(), rest[row].end());
    parts.push_back({row, first, places.size()});
  }
  if (places.empty()) return;
  SparseMatrix left;
  left.rows = matrix.rows;
  left.scales = matrix.scales;
  for (const std::size_t k : places) left.values.push_back(matrix.values[k]);
  const auto column = [&](std::size_t k) {
    const std::uint32_t from = matrix.col_idx[places[k]];
    return from / kWindowColumns * kWindow + from % kWindowColumns;
  };
  add_slices(left, std::move(parts), lanes, padding, column, group);
}

WindowGroup make_windows(const SparseMatrix& matrix, std::uint32_t begin, std::uint32_t end, const KernelTable& kernels,
                         ValueKind kind, std::size_t enough) {
  WindowGroup group;
  group.begin = group.rest.begin = begin;
  group.end = group.rest.end = end;
  group.values.kind = group.rest.values.kind = kind;
  group.rest.first = false;
  std::vector<RowPart> rows;
  for (std::uint32_t row = begin; row < end; ++row) rows.push_back({row, matrix.row_ptr[row], matrix.row_ptr[row + 1]});
  std::stable_sort(rows.begin(), rows.end(), [](const RowPart& a, const RowPart& b) { return a.size() > b.size(); });
  std::vector<std::vector<std::size_t>> rest(end);
  const auto lanes = static_cast<std::size_t>(kernels.lanes);
  for (std::size_t s = 0; s < rows.size(); s += lanes) {
    const std::vector<RowPart> slice(rows.begin() + static_cast<std::ptrdiff_t>(s),
                                     rows.begin() + static_cast<std::ptrdiff_t>(std::min(s + lanes, rows.size())));
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      group.rows.push_back(lane < slice.size() ? slice[lane].row : matrix.rows);
    }
    add_windows(matrix, split_slice(matrix, slice, enough, &rest), lanes, &group);
  }
  group.values.fit();
  group.positions.shrink_to_fit();
  add_rest(matrix, rest, static_cast<std::size_t>(kernels.slice_lanes), kWindowColumns, &group.rest);
  return group;
}

}  // namespace

void StoredValues::add(float value, float scale) {
  switch (kind) {
    case ValueKind::kFloat32: return append(&bytes, value);
    case ValueKind::kFloat16: return append(&bytes, half_bits(value));
    case ValueKind::kInt8: return append(&bytes, static_cast<std::int8_t>(std::lrint(value / scale)));
  }
}

SliceView SliceGroup::view(std::uint32_t row_limit) const {
  return {lengths.data(), lengths.size(), col_idx.data(), values.bytes.data(), values.kind, rows.data(), row_limit};
}

WindowView WindowGroup::view(std::uint32_t row_limit) const {
  return {entry_counts.data(), entry_counts.size(), entries.data(), positions.data(),
          values.bytes.data(), values.kind,         rows.data(),    row_limit};
}

SlicePlan plan_slices(const SparseMatrix& matrix, const KernelTable& kernels, std::uint32_t groups) {
  SlicePlan plan;
  plan.rows = matrix.rows;
  plan.block_columns = std::min(matrix.columns, kMaxColumns);
  const ValueKind kind = kind_for(matrix, kernels, groups);
  if (kind == ValueKind::kInt8) plan.scales = matrix.scales;
  const std::vector<std::uint32_t> bounds = partition_rows(matrix, groups);
  for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
    std::vector<SliceGroup> blocks;
    for (std::uint64_t from = 0; from < matrix.columns; from += kMaxColumns) {
      const auto first = static_cast<std::uint32_t>(from);
      const std::uint32_t width = std::min(matrix.columns - first, kMaxColumns);
      blocks.push_back(make_slices(matrix, bounds[g], bounds[g + 1], first, width,
                                   static_cast<std::size_t>(kernels.slice_lanes), kind));
      blocks.back().first = from == 0;
      blocks.back().last = from + width == matrix.columns;
    }
    plan.groups.push_back(std::move(blocks));
  }
  return plan;
}

bool fits_windows(std::uint32_t columns) { return columns <= kMaxColumns / kWindow * kWindowColumns; }

WindowPlan plan_windows(const SparseMatrix& matrix, const KernelTable& kernels, std::uint32_t groups) {
  WindowPlan plan;
  plan.rows = matrix.rows;
  plan.windows = (matrix.columns + kWindowColumns - 1) / kWindowColumns;
  const ValueKind kind = kind_for(matrix, kernels, groups);
  if (kind == ValueKind::kInt8) plan.scales = matrix.scales;
  const std::size_t enough = streams(matrix, groups) ? kMinSharing : 1;
  const std::vector<std::uint32_t> bounds = partition_rows(matrix, groups);
  for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
    plan.groups.push_back(make_windows(matrix, bounds[g], bounds[g + 1], kernels, kind, enough));
  }
  return plan;
}

}  // namespace rigl
