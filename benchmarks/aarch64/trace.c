/* A plugin of QEMU that writes the instructions that run between two markers, `hint #126` and `hint
 * #127`, four bytes each, to the file of its argument `to=PATH`. A word of zeros ends each region.
 *
 * QEMU's header is part of its source, which Debian does not install, so the few functions of its
 * interface are declared here (docs/devel/tcg-plugins.rst of QEMU, version 1 of the interface). */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { NO_REGISTERS = 0 };

typedef void on_translation(plugin_id id, struct qemu_plugin_tb *block);
typedef void on_instruction(unsigned int cpu, void *data);
typedef void on_exit(plugin_id id, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, on_translation *callback);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *instruction,
                                            on_instruction *callback, int flags, void *data);
void qemu_plugin_register_atexit_cb(plugin_id id, on_exit *callback, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *instruction);

EXPORT int qemu_plugin_version = 1;

static const uint32_t kBegin = 0xd5032fdf, kEnd = 0xd5032fff;
static FILE *file;
static int is_inside;

static void executed(unsigned int cpu, void *data) {
  const uint32_t code = (uint32_t)(uintptr_t)data, zero = 0;
  (void)cpu;
  if (code == kEnd && is_inside) fwrite(&zero, 4, 1, file);
  if (code == kBegin || code == kEnd)
    is_inside = code == kBegin;
  else if (is_inside)
    fwrite(&code, 4, 1, file);
}

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
  (void)id;
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
    struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
    uint32_t code;
    memcpy(&code, qemu_plugin_insn_data(instruction), 4);
    qemu_plugin_register_vcpu_insn_exec_cb(instruction, executed, NO_REGISTERS,
                                           (void *)(uintptr_t)code);
  }
}

static void ended(plugin_id id, void *data) {
  (void)id, (void)data;
  fclose(file);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "to=", 3) != 0) return 1;
  file = fopen(argv[0] + 3, "wb");
  if (file == NULL) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
