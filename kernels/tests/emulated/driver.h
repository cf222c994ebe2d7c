// Runs every block of the kernel. Arguments: the operands' files, then the file for the result.

#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <string>

static void launch(char** pointers);
static std::vector<char*> pointers;

// Memory between two pages that cannot be touched, as close to the second as its alignment allows.
static char* fenced(size_t bytes) {
    const size_t page = 4096, whole = (bytes + page - 1) / page * page;
    char* p = (char*)mmap(nullptr, whole + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("no memory");
    mprotect(p, page, PROT_NONE);
    mprotect(p + page + whole, page, PROT_NONE);
    std::memset(p + page, 0xff, whole);
    return p + page + (whole - bytes) / 16 * 16;
}

static void thread_main() {
    launch(pointers.data());
    if (!current->open_products.empty() || !current->products.empty()) fail("nobody waits for a product");
    wait(Waits::ended);
}

static void run_block(std::vector<Thread>& threads, std::vector<std::vector<char>>& stacks, std::mt19937& random) {
    std::memset(shared_base, 0xff, KERNEL_SHARED_BYTES);
    for (uint32 t = 0; t < KERNEL_THREADS; ++t) {
        Thread& thread = threads[t];
        thread.index = {t, 0, 0};
        thread.open.clear();
        thread.groups.clear();
        thread.open_products.clear();
        thread.products.clear();
        thread.waits = Waits::nothing;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = stacks[t].data();
        thread.context.uc_stack.ss_size = stacks[t].size();
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, thread_main, 0);
    }
    std::vector<int> order(KERNEL_THREADS / 32);
    for (size_t w = 0; w < order.size(); ++w) order[w] = (int)w;
    for (;;) {
        std::shuffle(order.begin(), order.end(), random);
        for (int w : order) {
            Thread* lanes = &threads[w * 32];
            auto all = [&](Waits what) {
                return std::all_of(lanes, lanes + 32, [&](const Thread& thread) { return thread.waits == what; });
            };
            while (all(Waits::nothing) || all(Waits::warp)) {
                for (int l = 0; l < 32; ++l) {
                    current = lanes + l;
                    current->waits = Waits::nothing;
                    swapcontext(&scheduler, &current->context);
                }
            }
            if (!all(Waits::block) && !all(Waits::ended)) fail("a warp diverges at a barrier or a collective operation");
        }
        auto all = [&](Waits what) {
            return std::all_of(threads.begin(), threads.end(), [&](const Thread& thread) { return thread.waits == what; });
        };
        if (all(Waits::ended)) return;
        if (!all(Waits::block)) fail("only some warps reach a barrier");
        for (Thread& thread : threads) thread.waits = Waits::nothing;
    }
}

int main(int count, char** arguments) {
    for (int i = 1; i + 1 < count; ++i) {
        FILE* file = std::fopen(arguments[i], "rb");
        if (!file) fail("an operand is missing");
        std::fseek(file, 0, SEEK_END);
        const size_t bytes = (size_t)std::ftell(file);
        std::rewind(file);
        pointers.push_back(fenced(bytes));
        if (std::fread(pointers.back(), 1, bytes, file) != bytes) fail("an operand cannot be read");
        std::fclose(file);
    }
    pointers.push_back(fenced(KERNEL_OUTPUT_BYTES));
    shared_base = fenced(KERNEL_SHARED_BYTES);
    warps.resize(KERNEL_THREADS / 32);
    std::vector<Thread> threads(KERNEL_THREADS);
    std::vector<std::vector<char>> stacks(KERNEL_THREADS, std::vector<char>(1 << 17));
    std::mt19937 random(7);
    for (uint32 b = 0; b < KERNEL_BLOCKS; ++b) {
        block_index = {b, 0, 0};
        run_block(threads, stacks, random);
    }
    FILE* file = std::fopen(arguments[count - 1], "wb");
    if (!file || std::fwrite(pointers.back(), 1, KERNEL_OUTPUT_BYTES, file) != KERNEL_OUTPUT_BYTES) fail("no place for the result");
    std::fclose(file);
}
